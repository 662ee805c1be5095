"""Runs a user's script: records it, writes the capture, and prints the report."""
