"""Events from the history of the CUDA allocator, on a real GPU."""
