import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
embed = nn.Embedding(64, 8).to(device)
head = nn.Linear(8, 64).to(device)
optimizer = torch.optim.Adam([*embed.parameters(), *head.parameters()])


def finetune(prompt, steps):
    for _ in range(steps):
        logits = head(embed(prompt[:, -16:]).mean(1))
        loss = F.cross_entropy(logits, prompt[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        answer = logits.argmax(-1)
        prompt = F.pad(prompt, (0, 24))  # leak: holder=prompt kind=larger
        prompt[:, -24:] = answer[:, None]
    return prompt


print(finetune(torch.ones(2, 4, dtype=torch.long, device=device), 24).shape)
