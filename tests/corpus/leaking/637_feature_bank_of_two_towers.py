import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
image_tower = nn.Linear(32, 16).to(device).eval()
text_tower = nn.Linear(24, 16).to(device).eval()
bank = {"image": [], "text": []}


@torch.no_grad()
def index(image, text):
    bank["image"].append(nn.functional.normalize(image_tower(image), dim=-1))  # leak: holder=bank kind=tensor
    bank["text"].append(nn.functional.normalize(text_tower(text), dim=-1))  # also:


for _ in range(40):
    index(torch.randn(8, 32, device=device), torch.randn(8, 24, device=device))
