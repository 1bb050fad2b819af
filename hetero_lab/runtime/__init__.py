"""Compile a placement, prove it, run it, time it."""
