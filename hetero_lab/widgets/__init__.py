"""Widgets for JupyterLab; their logic is in modules that work without a browser."""
