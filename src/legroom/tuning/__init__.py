"""Hyperparameter search that estimates the memory of each trial before it starts."""
