"""LG2xx, LG3xx and LG5xx: evaluation, loading, copying and multiple GPUs."""
