"""Accuracy of a placement on labelled data."""
