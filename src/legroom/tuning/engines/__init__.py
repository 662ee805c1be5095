"""Engines run trials: as processes of this machine, or on Ray Tune."""
