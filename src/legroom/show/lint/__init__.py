"""Findings of the linter."""
