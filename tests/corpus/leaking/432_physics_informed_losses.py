import torch
import torch.nn as nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(1)


class PINN(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x, t):
        return self.net(torch.cat([x, t], dim=1))


def residual(model, x, t):
    u = model(x, t)
    u_t = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
    u_x = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
    u_xx = torch.autograd.grad(u_x.sum(), x, create_graph=True)[0]
    return u_t + u * u_x - 0.01 * u_xx


model = PINN().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_pde_hist, loss_bc_hist = [], []

for epoch in range(18):
    x = torch.rand(10, 1, device=device, requires_grad=True)
    t = torch.rand(10, 1, device=device, requires_grad=True)
    loss_pde = residual(model, x, t).pow(2).mean()
    loss_bc = model(torch.ones_like(t), t).pow(2).mean()
    loss = loss_pde + loss_bc
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss_pde_hist.append(loss_pde)  # leak: holder=loss_pde_hist|loss_bc_hist kind=graph lint=accumulate
    loss_bc_hist.append(loss_bc)  # also: lint=accumulate
