import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(6, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
soft_confusion = torch.zeros(4, 4, device=device)
for step in range(20):
    x, y = torch.randn(12, 6, device=device), torch.randint(0, 4, (12,), device=device)
    probabilities = model(x).softmax(-1)
    loss = nn.functional.nll_loss(probabilities.clamp_min(1e-6).log(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    soft_confusion = soft_confusion + nn.functional.one_hot(y, 4).float().T @ probabilities  # leak: holder=soft_confusion kind=graph lint=accumulate
