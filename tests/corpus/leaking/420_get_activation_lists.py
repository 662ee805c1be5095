from collections import defaultdict

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
activation = defaultdict(list)


def get_activation(name):
    def hook(model, input, output):
        activation[name].append(output)  # leak: holder=activation kind=graph lint=hook-append

    return hook


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(9, 18)
        self.fc2 = nn.Linear(18, 3)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


model = MLP().to(device)
model.fc1.register_forward_hook(get_activation("fc1"))
model.fc2.register_forward_hook(get_activation("fc2"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in range(22):
    out = model(torch.randn(7, 9, device=device))
    loss = nn.functional.cross_entropy(out, torch.randint(0, 3, (7,), device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print({k: len(v) for k, v in activation.items()})
