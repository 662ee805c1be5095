"""Saves and restores the state that a step changes."""
