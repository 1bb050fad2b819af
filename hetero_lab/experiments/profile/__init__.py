"""Profile: one placement of one model, measured."""
