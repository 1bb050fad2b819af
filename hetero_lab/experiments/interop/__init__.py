"""Files of other tools: benchmark_app's reports, OpenVINO's .dot dumps."""
