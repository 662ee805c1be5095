"""Hyperparameter search that knows what fits."""
