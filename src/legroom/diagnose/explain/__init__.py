"""Explains an error: its kind, its possible causes, and a check and a fix for each cause."""
