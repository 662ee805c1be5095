"""Memory events, the simulated CUDA allocator, and the analysis of events. This package never imports torch."""
