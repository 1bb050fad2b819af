"""Questions that decide what to measure: calibrate, optimize, hotspots, explain, noise."""
