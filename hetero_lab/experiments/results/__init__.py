"""Measurements as results with tables, and the one module that compares them."""
