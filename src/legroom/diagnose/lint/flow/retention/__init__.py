"""Determines how long a stored value lives."""
