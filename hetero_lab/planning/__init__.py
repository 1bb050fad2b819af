"""The best placement for given costs: planners and their proofs. Pure, no runtime."""
