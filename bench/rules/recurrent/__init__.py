"""Workspaces of recurrent layers: recording, comparing."""
