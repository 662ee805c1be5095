"""Helpers that several benchmark programs share."""
