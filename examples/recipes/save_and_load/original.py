"""Save the state_dict of a model, and save the whole model object. By default, PyTorch 2.6 and newer refuse to load a whole
model object.

legroom run --gpu 64MiB examples/recipes/save_and_load/original.py
"""

import os
import tempfile

import torch
from torch import nn


class TheModelClass(nn.Module):
    def __init__(self):
        super(TheModelClass, self).__init__()  # noqa: UP008
        self.layer = nn.Linear(2048, 2048)

    def forward(self, x):
        return self.layer(x)


MODEL_PATH = tempfile.mkdtemp()
torch.manual_seed(0)
model = TheModelClass().cuda()
for param_tensor in model.state_dict():
    print(param_tensor, "\t", model.state_dict()[param_tensor].size())

torch.save(model.state_dict(), os.path.join(MODEL_PATH, "model.pt"))
new_model = TheModelClass().cuda()
new_model.load_state_dict(torch.load(os.path.join(MODEL_PATH, "model.pt")))
print(f"peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")

torch.save(model, os.path.join(MODEL_PATH, "model.pt"))
model = torch.load(os.path.join(MODEL_PATH, "model.pt"))
