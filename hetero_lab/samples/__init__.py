"""Sample models and labelled data: bundled, or fetched when first asked for."""
