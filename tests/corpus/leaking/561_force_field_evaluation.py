import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(9, 24), nn.Tanh(), nn.Linear(24, 1))

    def forward(self, positions):
        centred = positions - positions.mean(dim=1, keepdim=True)
        return self.net(centred.flatten(1)).squeeze(1)


def test(model, loader, device):
    """Evaluate with gradients enabled, because the forces are derivatives."""
    model.eval()
    loss_e = loss_f = 0.0
    for positions, e_ref, f_ref in loader:
        positions = positions.to(device).requires_grad_(True)
        energy = model(positions)
        forces = -torch.autograd.grad(energy.sum(), positions, create_graph=True)[0]
        loss_e += (energy - e_ref.to(device)).abs().sum().item()
        loss_f += (forces - f_ref.to(device)).abs().mean(dim=(1, 2)).sum()  # leak: holder=loss_f kind=graph lint=accumulate
    return loss_e / len(loader.dataset), loss_f / len(loader.dataset)


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
data = TensorDataset(torch.randn(96, 3, 3), torch.randn(96), torch.randn(96, 3, 3))
print(test(Potential().to(device), DataLoader(data, batch_size=4), device))
