"""Loggers: a study in TensorBoard and in Weights & Biases."""
