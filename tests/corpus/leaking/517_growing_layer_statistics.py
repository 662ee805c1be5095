import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class GrowingLinear(nn.Module):
    """A layer that accumulates statistics for choosing new neurons later."""

    def __init__(self, d_in, d_out):
        super().__init__()
        self.layer = nn.Linear(d_in, d_out)
        self.tensor_s = torch.zeros(d_in, d_in, device=device)
        self.samples = 0

    def forward(self, x):
        self.tensor_s = self.tensor_s + torch.einsum("ij,ik->jk", x, x)  # leak: holder=tensor_s kind=graph lint=accumulate
        self.samples += x.size(0)
        return self.layer(x)


first, second = nn.Linear(10, 8).to(device), GrowingLinear(8, 4).to(device)
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.05)
for step in range(24):
    x, y = torch.randn(16, 10, device=device), torch.randint(0, 4, (16,), device=device)
    loss = nn.functional.cross_entropy(second(torch.relu(first(x))), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("rank", torch.linalg.matrix_rank(second.tensor_s / second.samples).item())
