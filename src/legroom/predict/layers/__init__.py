"""Analyzes a model layer by layer: sizes, and shapes that do not match."""
