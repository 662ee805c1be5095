"""Rules for what CUDA allocates where a trace over CPU or fake tensors differs.

`CudaRules(gpu).plan(...)` in `rules` returns, for one operation, what the CUDA kernel allocates in addition to its results and in which
order. `CudaRules(gpu).installed(...)` makes operations that are composed of others (attention, dropout, recurrent
layers, everything under autocast, optimizers) take CUDA's path. Each file states what its kernels do and where
that was read or measured. `RULES_VERSION` in `versions` states the torch, cuDNN and GPU of the measurements.

Nothing is imported here, so that the process that queries cuDNN does not load torch.
"""
