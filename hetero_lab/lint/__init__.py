"""What is awkward about a placement, and the remedy. Pure: no runtime."""
