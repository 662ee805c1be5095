import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def train(steps=26, max_norm=1.0):
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    grad_norms = []
    for step in range(steps):
        x = torch.randn(4, 6, 8, device=device)
        loss = (model(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        grad_norms.append(norm)  # leak: holder=grad_norms kind=tensor
        optimizer.step()
    return grad_norms


print(max(train()).item())
