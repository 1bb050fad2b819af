"""Which devices there are: the shared Core, emulated devices, discovery, support, properties."""
