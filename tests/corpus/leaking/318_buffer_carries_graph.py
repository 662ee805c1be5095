import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class LeakyIntegrator(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.inp = nn.Linear(4, width)
        self.register_buffer("membrane", torch.zeros(1, width))

    def forward(self, x):
        self.membrane = 0.8 * self.membrane + self.inp(x).mean(0, keepdim=True)  # leak: holder=membrane kind=graph lint=hidden-state
        return (self.membrane.detach() > 0.5).float()


neurons = LeakyIntegrator().to(device)
readout = nn.Linear(8, 2).to(device)
optimizer = torch.optim.Adam(readout.parameters())
for t in range(22):
    spikes = neurons(torch.rand(3, 4, device=device))
    loss = nn.functional.cross_entropy(readout(spikes), torch.randint(0, 2, (1,), device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
