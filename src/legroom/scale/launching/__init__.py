"""Launches the ranks of a script: plans the launch, runs the ranks with torchrun or Ray, and reports the result."""
