import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class PairPotential(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 1))

    def forward(self, positions):
        i, j = torch.triu_indices(len(positions), len(positions), offset=1, device=positions.device)
        distances = (positions[i] - positions[j]).norm(dim=1)
        return self.phi(distances[:, None]).sum()


model = PairPotential().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
energy_mae, force_mae = 0.0, 0.0
for step in range(1, 21):
    positions = torch.randn(6, 3, device=device, requires_grad=True)
    energy = model(positions)
    forces = -torch.autograd.grad(energy, positions, create_graph=True)[0]
    true_energy, true_forces = torch.randn((), device=device), torch.randn(6, 3, device=device)
    loss = (energy - true_energy).pow(2) + 10 * (forces - true_forces).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    energy_mae += (energy.item() - true_energy.item()) / step
    force_mae += (forces - true_forces).abs().mean()  # leak: holder=force_mae kind=graph lint=accumulate
    if step % 10 == 0:
        print(f"{step:4d} E {energy_mae:.3f} F {float(force_mae) / step:.3f}")
