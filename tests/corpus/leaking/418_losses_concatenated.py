import torch
from torch import nn

device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
all_losses = torch.zeros(0, device=device)

for it in range(24):
    x = torch.randn(10, 8, device=device)
    loss = (model(x) - x.mean(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    all_losses = torch.cat((all_losses, loss.view(1)))  # leak: holder=all_losses kind=graph lint=accumulate

print("mean of the last five", all_losses[-5:].mean().item())
