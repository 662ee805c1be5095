import torch
import torch.nn.functional as F
from torch import nn


def main():
    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).to(device)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.01)
    embeddings = None
    for step in range(18):
        batch = torch.randn(12, 16, device=device)
        z = F.normalize(encoder(batch), dim=1)
        loss = (z @ z.T).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if embeddings is None:
            embeddings = z
        else:
            embeddings = torch.cat((embeddings, z), dim=0)  # leak: holder=embeddings kind=graph lint=accumulate


main()
