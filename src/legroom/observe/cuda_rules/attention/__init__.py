"""Memory that attention uses on CUDA."""
