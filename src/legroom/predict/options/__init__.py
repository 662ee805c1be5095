"""Memory-saving options, applied to a traced run."""
