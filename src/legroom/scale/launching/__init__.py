"""Launches the ranks of a script. This package contains the plan, the engines, and the result."""
