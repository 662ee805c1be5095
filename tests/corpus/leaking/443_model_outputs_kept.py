from dataclasses import dataclass
from typing import Optional

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class ModelOutput:
    loss: Optional[torch.Tensor] = None
    logits: Optional[torch.Tensor] = None
    hidden_states: Optional[tuple] = None


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.layer = nn.Linear(16, 16)
        self.out = nn.Linear(16, 3)

    def forward(self, input_ids, labels=None):
        h0 = self.embed(input_ids).mean(1)
        h1 = torch.relu(self.layer(h0))
        logits = self.out(h1)
        loss = nn.functional.cross_entropy(logits, labels) if labels is not None else None
        return ModelOutput(loss=loss, logits=logits, hidden_states=(h0, h1))


model = Classifier().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
epoch_outputs = []
for step in range(22):
    batch = {"input_ids": torch.randint(0, 50, (4, 9), device=device), "labels": torch.randint(0, 3, (4,), device=device)}
    outputs = model(**batch)
    outputs.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    epoch_outputs.append(outputs)  # leak: holder=epoch_outputs kind=graph lint=accumulate
print(sum(o.loss.item() for o in epoch_outputs) / len(epoch_outputs))
