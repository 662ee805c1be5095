"""Rules for operations that allocate different memory on CUDA than in a trace over CPU or fake tensors.

`CudaRules(gpu).plan(...)` in `rules` returns the memory that the CUDA kernel of an operation allocates in addition to
its results, in the order of allocation. `CudaRules(gpu).installed(...)` makes composite operations follow CUDA's
implementation: attention, dropout, recurrent layers, optimizers, and all operations under autocast. Each file
describes a group of kernels, and names the source code or the measurement on which each rule is based. `RULES_VERSION`
in `versions` contains the torch version, the cuDNN version and the GPU of the measurements.

This module imports nothing, so the process that queries cuDNN does not load torch.
"""
