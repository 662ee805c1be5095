"""Runs a user's script: records it, writes the capture, reports at the end."""
