"""Rules for operations that allocate different memory on CUDA than in a trace over CPU or fake tensors.

`CudaRules(gpu).plan(...)` in `rules` returns what the CUDA kernel of one operation allocates in addition to its
results, and in which order. `CudaRules(gpu).installed(...)` makes operations that are composed of others (attention,
dropout, recurrent layers, everything under autocast, optimizers) take CUDA's path. Each file states what its kernels
do, and names the source code or the measurement behind each rule. `RULES_VERSION` in `versions` states the torch, cuDNN
and GPU of the measurements.

This module imports nothing, so the process that queries cuDNN does not load torch.
"""
