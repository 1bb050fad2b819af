"""Annex. The parallel executor: independent subgraphs at the same time."""
