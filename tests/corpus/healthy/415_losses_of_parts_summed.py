import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class DeepSupervision(nn.Module):
    def __init__(self, width=10, depth=4):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.heads = nn.ModuleList([nn.Linear(width, 3) for _ in range(depth)])

    def forward(self, x):
        outputs = []
        for block, head in zip(self.blocks, self.heads):
            x = torch.relu(block(x))
            outputs.append(head(x))
        return outputs


model = DeepSupervision().to(device)
optimizer = torch.optim.Adam(model.parameters())
for step in range(24):
    x, y = torch.randn(6, 10, device=device), torch.randint(0, 3, (6,), device=device)
    total_loss = 0
    for output in model(x):
        total_loss += nn.functional.cross_entropy(output, y)
    optimizer.zero_grad()
    total_loss.backward()
    optimizer.step()
