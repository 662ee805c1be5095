"""Forward, backward and tensor hooks, post-accumulate hooks (optimizer in backward), and hooks for saved tensors."""

import torch
import torch.nn as nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

torch.manual_seed(6)
device = torch.device("cuda:0")
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 2)).to(device)
activations, gradients = {}, {}


def forward_hook(name):
    def hook(module, inputs, output):
        activations[name] = output.detach().cpu().numpy().mean()

    return hook


def backward_hook(name):
    def hook(module, grad_in, grad_out):
        gradients[name] = grad_out[0].norm().item()
        assert grad_out[0].device.type == device.type

    return hook


handles = [m.register_forward_hook(forward_hook(n)) for n, m in model.named_children()]
handles += [m.register_full_backward_hook(backward_hook(n)) for n, m in model.named_children()]
handles.append(model[2].register_forward_pre_hook(lambda m, args: (args[0] * 2,)))
x = torch.randn(4, 10, device=device, requires_grad=True)
x.register_hook(lambda g: g * torch.full(g.shape, 0.5, device=g.device))
out = model(x)
middle = out * 1
middle.retain_grad()
middle.pow(2).sum().backward()
print(activations, gradients, x.grad.sum().item(), middle.grad.sum().item())
for h in handles:
    h.remove()

# The optimizer-in-backward tutorial.
optimizers = {p: torch.optim.Adam([p], foreach=False) for p in model.parameters()}


def optimizer_hook(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(optimizer_hook)
for _ in range(3):
    loss = model(torch.randn(4, 10, device=device)).pow(2).mean()
    loss.backward()
    print(loss.item(), [p.grad for p in model.parameters()].count(None))

other = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)).to(device)
data = torch.randn(128, 64, device=device)


def pack(t):
    return t.device, t.cpu().to(torch.float64)


def unpack(packed):
    where, t = packed
    return t.to(where, torch.float32)


for context in (
    save_on_cpu(pin_memory=False),
    save_on_cpu(pin_memory=True),
    saved_tensors_hooks(pack, unpack),
):
    other.zero_grad()
    before = torch.cuda.memory_allocated()
    with context:
        loss = other(data).pow(2).sum()
    print("memory:", torch.cuda.memory_allocated() - before)
    loss.backward()
    print(loss.item(), other[0].weight.grad.sum().item(), other[0].weight.grad.device.type == device.type)
    del loss
