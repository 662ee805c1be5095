"""Analyzes a model layer by layer. Finds the sizes of each layer and shapes that do not match."""
