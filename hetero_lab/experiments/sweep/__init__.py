"""Sweep: many placements, measured in turns and ranked."""
