"""The best placement: cost models, planners and their proofs. Pure, no runtime."""
