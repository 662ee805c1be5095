import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
cell = nn.LSTMCell(8, 16).to(device)
readout = nn.Linear(16, 1).to(device)
optimizer = torch.optim.Adam(readout.parameters(), lr=1e-3)


def run(steps):
    state = (torch.zeros(4, 16, device=device), torch.zeros(4, 16, device=device))
    for _ in range(steps):
        x = torch.randn(4, 8, device=device)
        state = cell(x, state)  # leak: holder=state kind=graph lint=hidden-state
        loss = (readout(state[0]) - x.mean()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)  # lint: retain-graph
        optimizer.step()


run(18)
