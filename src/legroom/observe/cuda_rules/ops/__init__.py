"""Memory that single operations use on CUDA beyond their outputs."""
