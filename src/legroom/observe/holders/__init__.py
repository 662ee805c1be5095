"""Finds the objects that keep a tensor alive: reference paths, retained size, and the names in the user's code."""
