"""Annex. Wrong numbers, refused ops and other faults of devices: the cause, the way around."""
