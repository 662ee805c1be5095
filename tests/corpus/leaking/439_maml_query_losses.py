import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Sine:
    def sample(self, k=5):
        x = torch.rand(2 * k, 1, device=device) * 6 - 3
        y = torch.sin(x + torch.rand(1, device=device))
        return (x[:k], y[:k]), (x[k:], y[k:])


def forward(x, w):
    x = torch.tanh(F.linear(x, w[0], w[1]))
    return F.linear(x, w[2], w[3])


weights = nn.ParameterList([torch.randn(16, 1), torch.zeros(16), torch.randn(1, 16) * 0.2, torch.zeros(1)]).to(device)
meta_opt = torch.optim.Adam(weights.parameters(), lr=1e-3)
task = Sine()
meta_loss_log = []

for iteration in range(18):
    meta_loss = 0.0
    for _ in range(3):
        (xs, ys), (xq, yq) = task.sample()
        inner = F.mse_loss(forward(xs, list(weights)), ys)
        grads = torch.autograd.grad(inner, list(weights), create_graph=True)
        adapted = [w - 0.01 * g for w, g in zip(weights, grads)]
        meta_loss = meta_loss + F.mse_loss(forward(xq, adapted), yq)
    meta_opt.zero_grad()
    meta_loss.backward()
    meta_opt.step()
    meta_loss_log.append(meta_loss / 3)  # leak: holder=meta_loss_log kind=graph lint=accumulate
