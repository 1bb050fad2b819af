"""Annex. Several models that share the devices of a machine."""
