import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class LitClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 3)
        self.validation_step_outputs = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch, batch_idx):
        self.validation_step_outputs.append(self.net(batch[0]))

    def on_validation_epoch_end(self):
        score = torch.cat(self.validation_step_outputs).mean().item()
        self.validation_step_outputs.clear()
        return score


module = LitClassifier().to(device)
optimizer = torch.optim.Adam(module.parameters())
for epoch in range(6):
    for index in range(4):
        batch = torch.randn(6, 8, device=device), torch.randint(0, 3, (6,), device=device)
        loss = module.training_step(batch, index)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        for index in range(3):
            module.validation_step((torch.randn(6, 8, device=device), None), index)
    module.on_validation_epoch_end()
