"""A simulation of PyTorch's CUDA caching allocator."""
