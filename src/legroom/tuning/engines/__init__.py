"""Engines run trials: as processes on this machine, or on Ray Tune."""
