"""The state that a step changes, and how it is restored."""
