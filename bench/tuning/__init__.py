"""Hyperparameter search: lost trials, packing, overhead, resuming."""
