import math
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader


class Accelerator:
    """A replacement for Accelerate's class, for a single process."""

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def gather_for_metrics(self, tensor):
        return tensor


class CausalLM(nn.Module):
    def __init__(self, vocab=40, width=12):
        super().__init__()
        self.wte, self.mix, self.lm_head = nn.Embedding(vocab, width), nn.GRU(width, width, batch_first=True), nn.Linear(width, vocab)

    def forward(self, input_ids, labels):
        logits = self.lm_head(self.mix(self.wte(input_ids))[0])
        return SimpleNamespace(loss=nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()), logits=logits)


accelerator = Accelerator()
per_device_eval_batch_size = 4
rows = [{"input_ids": torch.randint(0, 40, (10,))} for _ in range(96)]
eval_dataloader = DataLoader(rows, batch_size=per_device_eval_batch_size)
model = CausalLM().to(accelerator.device)

model.eval()
losses = []
for step, batch in enumerate(eval_dataloader):
    input_ids = batch["input_ids"].to(accelerator.device)
    outputs = model(input_ids, labels=input_ids)  # lint: no-grad
    loss = outputs.loss
    losses.append(accelerator.gather_for_metrics(loss.repeat(per_device_eval_batch_size)))  # leak: holder=losses kind=graph lint=accumulate

losses = torch.cat(losses)
print(f"perplexity: {math.exp(torch.mean(losses)):.2f}")
