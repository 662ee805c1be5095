"""Tensors that report that they are on a virtual GPU, in pinned memory, or from another library."""
