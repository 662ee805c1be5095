"""Traces a script or a step without data."""
