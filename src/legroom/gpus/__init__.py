"""GPUs: specifications by name, and live figures of this machine."""
