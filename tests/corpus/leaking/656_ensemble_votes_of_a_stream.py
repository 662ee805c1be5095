from collections import defaultdict

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
members = [nn.Linear(12, 4).to(device).eval() for _ in range(3)]
votes = defaultdict(list)
with torch.inference_mode():
    for sample in range(40):
        x = torch.randn(2, 12, device=device)
        for number, member in enumerate(members):
            votes[number].append(member(x).softmax(-1))  # leak: holder=votes kind=tensor
