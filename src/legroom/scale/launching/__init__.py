"""Launches the ranks of a script: the plan, the engines, and the result."""
