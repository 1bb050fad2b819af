"""What an op and a boundary cost: learnt, predicted, compared. Pure, no runtime."""
