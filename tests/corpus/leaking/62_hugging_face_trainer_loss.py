from types import SimpleNamespace

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class TinyLanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 16)
        self.head = nn.Linear(16, 40)

    def forward(self, input_ids, labels):
        logits = self.head(self.embed(input_ids))
        return SimpleNamespace(loss=nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits=logits)


class Trainer:
    def __init__(self, model, dataset):
        self.model, self.dataset = model, dataset
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.tr_loss = torch.tensor(0.0, device=device)

    def compute_loss(self, inputs):
        return self.model(**inputs).loss

    def train(self):
        for inputs in self.dataset:
            tr_loss_step = self.compute_loss(inputs)
            tr_loss_step.backward()
            self.tr_loss = self.tr_loss + tr_loss_step  # leak: holder=tr_loss kind=graph lint=accumulate
            self.optimizer.step()
            self.optimizer.zero_grad()


ids = [torch.randint(0, 40, (4, 7), device=device) for _ in range(20)]
Trainer(TinyLanguageModel().to(device), [{"input_ids": each, "labels": each} for each in ids]).train()
