"""Memory that recurrent layers use on CUDA."""
