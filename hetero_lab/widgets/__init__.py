"""Widgets for JupyterLab; what they do is in modules that work without a browser."""
