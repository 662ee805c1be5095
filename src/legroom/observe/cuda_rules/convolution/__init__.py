"""Memory that convolutions use on CUDA beyond their outputs."""
