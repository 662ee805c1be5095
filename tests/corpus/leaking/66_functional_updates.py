import torch

device = "cuda" if torch.cuda.is_available() else "cpu"


def init_params():
    return {
        "w": torch.randn(8, 3, device=device, requires_grad=True),
        "b": torch.zeros(3, device=device, requires_grad=True),
    }


def predict(params, x):
    return torch.tanh(x @ params["w"] + params["b"])


def loss_fn(params, x, y):
    return (predict(params, x) - y).pow(2).mean()


def update(params, grads, rate=0.05):
    return {name: value - rate * grad for (name, value), grad in zip(params.items(), grads)}


params = init_params()
for step in range(20):
    x, y = torch.randn(10, 8, device=device), torch.randn(10, 3, device=device)
    loss = loss_fn(params, x, y)
    grads = torch.autograd.grad(loss, list(params.values()))
    params = update(params, grads)  # leak: holder=params kind=graph lint=hidden-state
