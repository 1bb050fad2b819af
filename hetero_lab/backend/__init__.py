"""Devices: the shared Core, emulated devices, discovery, support, properties."""
