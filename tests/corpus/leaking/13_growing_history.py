import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(10, 4).to(device)
optimizer = torch.optim.Adam(model.parameters())
history = torch.empty(0, 4, device=device)

for step in range(20):
    x = torch.randn(50, 10, device=device)
    out = model(x)
    loss = out.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history = torch.cat([history, out.detach()])  # leak: holder=history kind=larger
print(history.mean(dim=0))
