"""Search: calibrate, optimize, recover accuracy, explain."""
