import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class StreamingGraph:
    def __init__(self, width=6):
        self.adjacency = torch.zeros(1, 1, device=device)
        self.width = width

    def add_nodes(self, count):
        self.adjacency = torch.block_diag(self.adjacency, torch.ones(count, count, device=device))  # leak: holder=adjacency kind=larger

    def features(self):
        degree = self.adjacency.sum(1)[-8:]
        return degree[:, None].expand(-1, self.width)


graph = StreamingGraph()
readout = nn.Linear(6, 1).to(device)
optimizer = torch.optim.SGD(readout.parameters(), lr=0.01)
for event in range(24):
    graph.add_nodes(4)
    loss = readout(graph.features()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
