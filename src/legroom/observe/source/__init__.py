"""Reads the user's source code to find information that the running objects do not provide."""
