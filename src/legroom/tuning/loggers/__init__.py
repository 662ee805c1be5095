"""Loggers that write a study to TensorBoard and to Weights & Biases."""
