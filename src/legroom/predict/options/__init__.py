"""Memory-saving options that can be applied to a traced run."""
