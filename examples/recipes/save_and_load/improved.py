"""Save the weights and the optimizer with `legroom.Checkpoints`, and load the weights into another model without a second
copy on the GPU.

legroom run --gpu 64MiB examples/recipes/save_and_load/improved.py
"""

import tempfile

import torch
from torch import nn

import legroom


class TheModelClass(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2048, 2048)

    def forward(self, x):
        return self.layer(x)


torch.manual_seed(0)
model = TheModelClass().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
checkpoints = legroom.Checkpoints(tempfile.mkdtemp())
checkpoints.track(model=model, optimizer=optimizer)
checkpoints.save(1)
print(*sorted(path.name for path in checkpoints.last.path.iterdir()), sep=", ")

new_model = TheModelClass().cuda()
checkpoints.load_weights(new_model)
print("same weights:", torch.equal(model.layer.weight, new_model.layer.weight))
print(f"peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")
