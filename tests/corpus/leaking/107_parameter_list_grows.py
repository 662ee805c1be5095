import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class PromptPool(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.width = width
        self.prompts = nn.ParameterList()
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        prompt = nn.Parameter(torch.randn(1, self.width, device=x.device) * 0.02)
        self.prompts.append(prompt)  # leak: holder=prompts|_parameters kind=tensor
        return self.head(x + prompt)


model = PromptPool().to(device)
optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
for step in range(22):
    x, y = torch.randn(8, 12, device=device), torch.randint(0, 2, (8,), device=device)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
