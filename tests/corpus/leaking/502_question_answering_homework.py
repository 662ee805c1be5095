from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class QAModel(nn.Module):
    def __init__(self, vocab=60, dim=12):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.enc = nn.GRU(dim, dim, batch_first=True)
        self.span = nn.Linear(dim, 2)

    def forward(self, input_ids, start_positions, end_positions):
        hidden, _ = self.enc(self.emb(input_ids))
        start, end = self.span(hidden).unbind(-1)
        loss = (F.cross_entropy(start, start_positions) + F.cross_entropy(end, end_positions)) / 2
        return SimpleNamespace(loss=loss, start_logits=start, end_logits=end)


model = QAModel().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
num_epoch, logging_step = 1, 100
print("Start Training ...")
for epoch in range(num_epoch):
    step = 1
    train_loss = train_acc = 0
    for _ in range(40):
        data = [torch.randint(0, 60, (4, 15)), torch.randint(0, 15, (4,)), torch.randint(0, 15, (4,))]
        data = [i.to(device) for i in data]
        output = model(input_ids=data[0], start_positions=data[1], end_positions=data[2])
        start_index = torch.argmax(output.start_logits, dim=1)
        end_index = torch.argmax(output.end_logits, dim=1)
        train_acc += ((start_index == data[1]) & (end_index == data[2])).float().mean().item()
        train_loss += output.loss  # leak: holder=train_loss kind=graph lint=accumulate
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % logging_step == 0:
            print(f"Epoch {epoch + 1} | Step {step} | loss = {train_loss.item() / logging_step:.3f}")
            train_loss = train_acc = 0
