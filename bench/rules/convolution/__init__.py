"""Workspaces of convolutions: recording, the table, the forest."""
