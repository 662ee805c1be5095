"""Reads the other files of a project, because a file alone often does not show whether a value is retained."""
