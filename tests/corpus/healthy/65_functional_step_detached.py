import torch

device = "cuda" if torch.cuda.is_available() else "cpu"


def step(params, x, y, rate=0.05):
    loss = (torch.tanh(x @ params["w"]) @ params["v"] - y).square().mean()
    grads = torch.autograd.grad(loss, list(params.values()))
    fresh = {k: (p - rate * g).detach().requires_grad_() for (k, p), g in zip(params.items(), grads)}
    return fresh, loss.item()


params = {
    "w": torch.randn(6, 12, device=device, requires_grad=True),
    "v": torch.randn(12, 1, device=device, requires_grad=True),
}
curve = []
for _ in range(20):
    params, value = step(params, torch.randn(8, 6, device=device), torch.randn(8, 1, device=device))
    curve.append(value)
