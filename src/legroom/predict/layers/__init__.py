"""Analyzes a model layer by layer: determines the sizes of each layer, and finds shapes that do not match."""
