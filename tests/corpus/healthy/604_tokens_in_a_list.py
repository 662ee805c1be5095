import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
embed, head = nn.Embedding(20, 8).to(device), nn.Linear(8, 20).to(device)
model = nn.Sequential(embed, head).eval()
token, text = torch.tensor([3], device=device), []
with torch.no_grad():
    for _ in range(60):
        token = model(token).argmax(-1)
        text.append(token)
print(torch.cat(text).tolist())
