"""What a model is: its graph, how it is read and prepared, and sample models and data."""
