"""Annex. Accuracy on labelled data: evaluate, classify, quantize, recover."""
