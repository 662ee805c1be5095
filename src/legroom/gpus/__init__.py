"""GPU specifications by name or size, and the GPUs and memory of this machine."""
