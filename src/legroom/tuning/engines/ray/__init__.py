"""Trials on Ray Tune."""
