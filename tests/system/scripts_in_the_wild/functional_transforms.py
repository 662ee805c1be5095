"""torch.func: per-sample gradients with vmap(grad), jacrev, functional_call, an ensemble with stack_module_state,
MAML."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)

torch.manual_seed(9)
device = torch.device("cuda")
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)
params = {k: v.detach() for k, v in model.named_parameters()}
buffers = {k: v.detach() for k, v in model.named_buffers()}
x, y = torch.randn(5, 4, device=device), torch.randint(0, 3, (5,), device=device)


def compute_loss(params, buffers, sample, target):
    predictions = functional_call(model, (params, buffers), (sample.unsqueeze(0),))
    return F.cross_entropy(predictions, target.unsqueeze(0))


per_sample = vmap(grad(compute_loss), in_dims=(None, None, 0, 0))(params, buffers, x, y)
for name, g in per_sample.items():
    print(name, tuple(g.shape), g.sum().item(), g.device.type == device.type)
grads, loss = grad_and_value(compute_loss)(params, buffers, x[0], y[0])
print(loss.item(), grads["0.weight"].norm().item())

weight = torch.randn(3, 4, device=device)
predict = lambda v: (weight @ v).tanh()  # noqa: E731
v = torch.randn(4, device=device)
print(
    jacrev(predict)(v).sum().item(),
    jacfwd(predict)(v).sum().item(),
    hessian(lambda v: predict(v).sum())(v).sum().item(),
)
value, pull = vjp(predict, v)
print(
    pull(torch.ones(3, device=device))[0].sum().item(),
    jvp(predict, (v,), (torch.ones(4, device=device),))[1].sum().item(),
)

models = [nn.Linear(4, 2).to(device) for _ in range(3)]
stacked, stacked_buffers = stack_module_state(models)
base = nn.Linear(4, 2).to("meta")
ensemble = vmap(lambda p, b, d: functional_call(base, (p, b), (d,)), in_dims=(0, 0, None))(
    stacked, stacked_buffers, x
)
print(ensemble.shape, ensemble.sum().item(), [m(x).sum().item() for m in models])

# One MAML step: the inner update stays in the graph.
meta = torch.optim.SGD(model.parameters(), lr=0.1)
fast = dict(model.named_parameters())
inner = F.cross_entropy(functional_call(model, fast, (x,)), y)
fast = {
    k: p - 0.4 * g
    for (k, p), g in zip(fast.items(), torch.autograd.grad(inner, list(fast.values()), create_graph=True))
}
outer = F.cross_entropy(functional_call(model, fast, (x.flip(0),)), y.flip(0))
meta.zero_grad()
outer.backward()
meta.step()
print(inner.item(), outer.item(), sum(p.sum().item() for p in model.parameters()))
