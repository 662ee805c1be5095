"""Rendering helpers that several reports share."""
