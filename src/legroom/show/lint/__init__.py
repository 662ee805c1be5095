"""Shows the findings of the linter."""
