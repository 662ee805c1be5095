"""Memory events, the simulated CUDA allocator, and their analysis. Never imports torch."""
