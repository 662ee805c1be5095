"""Estimates and layer summaries."""
