"""Devices: the shared Core; real, emulated and virtual ones; support, properties, releases."""
