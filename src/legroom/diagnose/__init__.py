"""Derives findings from events, source code and error messages."""
