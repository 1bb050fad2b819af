"""Sample models and labelled data: bundled, drawn, or fetched when first asked for."""
