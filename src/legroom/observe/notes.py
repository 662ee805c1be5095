"""Notes that a trace adds to an estimate.

This module does not import torch, because the process that shows the estimate does not need torch.
"""

BENCHMARK = (
    "`cudnn.benchmark` is enabled. In the first step, cuDNN benchmarks kernels, which can use all free memory, "
    "so the peak may reach the capacity of the GPU. Kernels that do not fit are skipped, so they do not "
    "affect whether the run fits."
)
"""A note about `torch.backends.cudnn.benchmark`. In ATen/native/cudnn/Conv_v8.cpp, `generate_and_filter_plans` halves
the requested workspace until the allocation succeeds, and skips kernels that need more memory. In a measurement on an
H200, ResNet-18 with batch size 64 needed only 1.6 GiB to run, but used up to 3.9 GiB if more memory was available. With
limits of 1.8, 2.0, 2.4 and 2.8 GiB, the model also ran, and used all memory up to the limit.
"""

COMMUNICATION = (
    "NCCL uses memory outside PyTorch on every GPU. The estimate includes 556 MiB for NCCL, which was "
    "measured on an H200 with one rank. More ranks or channels may need more memory."
)
COMMUNICATION_EXCLUDED = (
    "NCCL uses memory outside PyTorch on every GPU. On an H200 with one rank, NCCL used 556 MiB. If the GPU "
    "is specified by its size, the estimate does not include this memory."
)
COMMUNICATION_BYTES = 556 * 2**20
"""The device memory that the first all-reduce adds, measured by `bench/accuracy/measure_cases.py context`."""

ONE_STEP = (
    "Only one optimizer step was traced. Later steps start with the optimizer state allocated, so they may need more "
    "memory. The largest batch size may therefore be smaller."
)

CUDNN_CRASHED = (
    "cuDNN crashed when it was queried. The affected convolutions use recorded or predicted workspace sizes instead. Set `LEGROOM_CUDNN=off` to skip "
    "the query."
)
