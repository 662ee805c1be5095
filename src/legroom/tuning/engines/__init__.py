"""Engines run trials, either as processes on this machine or on Ray Tune."""
