"""Explains an error: its kind, causes, the check that decides, and the fix."""
