"""Analyzes a model layer by layer: the sizes, and shapes that do not match."""
