"""Whether a run will fit, before it runs: traces without data, replayed through the allocator of a given GPU."""
