"""Predicts the memory of a step under each strategy."""
