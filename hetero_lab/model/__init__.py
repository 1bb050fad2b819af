"""What a model is: how it is read and prepared, its names, its graph."""
