"""Annex. What to deploy: candidates race, the best are refined, a verdict sums it up."""
