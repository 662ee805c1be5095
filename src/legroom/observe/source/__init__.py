"""Reads the user's source code to find facts that the running objects do not show."""
