import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
activations = []


def save_activation(module, inputs, output):
    activations.append(output)  # leak: holder=activations kind=graph lint=hook-append


model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 3)).to(device)
model[1].register_forward_hook(save_activation)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for i in range(10):
        x = torch.randn(10, 12, device=device)
        y = torch.randint(0, 3, (10,), device=device)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
