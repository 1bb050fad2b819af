"""What to deploy: candidates race, the best are refined, and a verdict sums it up."""
