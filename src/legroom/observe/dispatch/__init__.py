"""Records events with a dispatch mode, for CPU tensors and for fake tensors."""
