"""What other tools write: benchmark_app's reports, OpenVINO's .dot dumps."""
