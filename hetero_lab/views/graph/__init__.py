"""The placement graph: one layout and one set of data for all renderers."""
