"""What about a placement is awkward, and the remedy. Pure."""
