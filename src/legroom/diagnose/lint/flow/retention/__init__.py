"""Determines how long a stored value lives: limits, releases and lifetimes of containers."""
