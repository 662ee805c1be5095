"""Reads the user's source code for what a run cannot show."""
