"""Events become findings."""
