"""Tensors that are on a virtual GPU, in pinned memory, or from another library."""
