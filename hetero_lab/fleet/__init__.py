"""Annex. A sweep over the machines of a Dask cluster."""
