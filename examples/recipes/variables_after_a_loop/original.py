"""Sum results in a loop. The variable `intermediate` stays alive after the last iteration, so the next operation runs out of
memory.

legroom run --gpu 128MiB examples/recipes/variables_after_a_loop/original.py
"""

import torch

inputs = torch.ones(5, 2**20).cuda()  # 20 MiB
result = torch.zeros(2**20).cuda()  # 4 MiB


def f(x):
    return torch.stack([x] * 10)  # 40 MiB


def g(x):
    return x.sum(0)


def h(x):
    return torch.stack([x] * 16)  # 64 MiB


for i in range(5):
    intermediate = f(inputs[i])
    result += g(intermediate)

print(f"after the loop: {torch.cuda.memory_allocated() / 2**20:.0f} MiB")
output = h(result)
print(f"sum {output.sum().item():.0f}")
