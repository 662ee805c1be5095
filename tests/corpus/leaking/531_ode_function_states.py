import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class ODEFunc(nn.Module):
    def __init__(self, dim=2):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 20), nn.Tanh(), nn.Linear(20, dim))
        self.nfe = 0
        self.visited = []

    def forward(self, t, y):
        self.nfe += 1
        dy = self.net(y**3)
        self.visited.append((t, dy))  # leak: holder=visited|func kind=graph lint=accumulate
        return dy


def odeint(func, y0, ts):
    ys = [y0]
    for t0, t1 in zip(ts[:-1], ts[1:]):
        h = t1 - t0
        k1 = func(t0, ys[-1])
        k2 = func(t1, ys[-1] + h * k1)
        ys.append(ys[-1] + h / 2 * (k1 + k2))
    return torch.stack(ys)


func = ODEFunc().to(device)
optimizer = torch.optim.RMSprop(func.parameters(), lr=1e-3)
times = [i / 4 for i in range(4)]
for itr in range(1, 20):
    y0 = torch.randn(6, 2, device=device)
    pred_y = odeint(func, y0, times)
    loss = (pred_y[-1] - y0 * 0.5).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("evaluations", func.nfe)
