"""Widgets for Jupyter; their logic is in modules that work without a browser."""
