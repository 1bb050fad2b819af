"""Models: how they are read and prepared, their names, their graph."""
