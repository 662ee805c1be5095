import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
stem = nn.Linear(10, 20).to(device)
head = nn.Linear(20, 1).to(device)
optimizer = torch.optim.SGD([*stem.parameters(), *head.parameters()], lr=0.01)
activation_grads = []
for step in range(22):
    activation = torch.relu(stem(torch.randn(7, 10, device=device)))
    activation.register_hook(lambda grad: activation_grads.append(grad))  # leak: holder=activation_grads kind=tensor lint=hook-append
    loss = head(activation).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(len(activation_grads))
