"""Reads the user's source code, for what the running objects do not show."""
