"""Annex. A placement taken away: frozen with a contract, and proven again wherever it is."""
