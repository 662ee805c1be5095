"""Analyzes a model layer by layer. Determines the sizes of each layer, and finds shapes that do not match."""
