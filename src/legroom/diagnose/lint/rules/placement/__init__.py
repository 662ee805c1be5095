"""LG3xx and LG5xx: tensors that are larger than necessary, or on the wrong GPU."""
