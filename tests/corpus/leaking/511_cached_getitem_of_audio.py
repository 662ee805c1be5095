from functools import lru_cache

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"


class LazySupervisedDataset(Dataset):
    """Tokenizes a conversation on demand."""

    def __init__(self, n=4000, length=16):
        super().__init__()
        self.n, self.length = n, length

    def __len__(self):
        return self.n

    @lru_cache(maxsize=None)  # also: lint=lru-cache
    def __getitem__(self, i):  # leak: holder=__getitem__|LazySupervisedDataset kind=tensor
        generator = torch.Generator().manual_seed(i)
        ids = torch.randint(0, 64, (self.length,), generator=generator)
        return {"input_ids": ids, "labels": ids.roll(-1)}


model = nn.Sequential(nn.Embedding(64, 16), nn.Linear(16, 64)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(LazySupervisedDataset(), batch_size=4, shuffle=True)
for step, batch in enumerate(loader):
    logits = model(batch["input_ids"].to(device))
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].to(device).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 45:
        break
