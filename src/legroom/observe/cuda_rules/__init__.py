"""What CUDA would allocate where a trace over CPU or fake tensors differs.

`CudaRules(gpu).plan(...)` says, operation by operation, what the CUDA kernel takes beyond its results and in which
order; `CudaRules(gpu).installed(...)` makes operations that are composed of others (attention, dropout, recurrent
layers, all of autocast, optimizers) take CUDA's path. Each file states for its rules what the kernel does and where
that was read or measured.
"""

from legroom.observe.cuda_rules.plan import Give, Keep, Output, Plan, Step, Take
from legroom.observe.cuda_rules.rules import CudaRules

__all__ = ["CudaRules", "Give", "Keep", "Output", "Plan", "Step", "Take"]
