"""What a trace says in words and others look for in it. Imports no torch, so that they need none."""

BENCHMARK = (
    "cudnn.benchmark is on: the first step tries kernels with as much memory as is free, so the peak may come near all of the "
    "GPU's memory. Tries that do not fit are given up, so they do not decide whether the run fits."
)
"""Source: `generate_and_filter_plans` in ATen/native/cudnn/Conv_v8.cpp, which halves the workspace it asks for until there is
room and drops the kernels that need more. Measured: ResNet-18 at batch 64, which needs 1.6 GiB, peaks at 3.9 GiB on an H200 and
runs under caps of 1.8, 2.0, 2.4 and 2.8 GiB, filling each."""

COMMUNICATION = (
    "Ranks talk through NCCL, which holds memory of its own on every GPU: 556 MiB are counted beside PyTorch's (measured on an H200 "
    "with one rank; with more ranks and channels it may be more)."
)
COMMUNICATION_BYTES = 556 * 2**20
"""What the device holds more after the first all-reduce; `bench/accuracy/measure_cases.py context` shows it."""

CUDNN_CRASHED = (
    "cuDNN crashed when it was queried. The affected convolutions use recorded workspace sizes instead. `LEGROOM_CUDNN=off` skips "
    "the query."
)
