"""Annex. What a machine lacks for its devices, and the way out."""
