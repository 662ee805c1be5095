"""Events from the CUDA allocator's own history, on a real GPU."""
