import torch
from torch import nn
from torch.func import functional_call

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(5, 1).to(device)
outer = torch.optim.Adam(model.parameters())
for task in range(12):
    fast = dict(model.named_parameters())
    for _ in range(3):
        x, y = torch.randn(6, 5, device=device), torch.randn(6, 1, device=device)
        inner_loss = (functional_call(model, fast, (x,)) - y).square().mean()
        grads = torch.autograd.grad(inner_loss, list(fast.values()), create_graph=True)
        fast = {name: p - 0.1 * g for (name, p), g in zip(fast.items(), grads)}
    query = functional_call(model, fast, (torch.randn(6, 5, device=device),)).square().mean()
    outer.zero_grad()
    query.backward()
    outer.step()
