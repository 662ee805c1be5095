"""Analyzes a model layer by layer: the sizes of each layer, and shapes that do not match."""
