"""Faults of devices: wrong numbers, refused ops, and the cheapest way around them."""
