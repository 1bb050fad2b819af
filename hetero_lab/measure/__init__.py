"""The engine: profile and sweep, turns in random order, workers, the budget."""
