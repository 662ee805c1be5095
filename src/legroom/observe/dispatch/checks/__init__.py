"""Checks of an operation before it runs."""
