"""Temporary memory of single operations: recording, comparing."""
