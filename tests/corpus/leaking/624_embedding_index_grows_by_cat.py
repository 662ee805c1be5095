import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Index:
    def __init__(self, width):
        self.vectors = torch.empty(0, width, device=device)

    def add(self, new):
        self.vectors = torch.cat([self.vectors, new])  # leak: holder=vectors kind=larger

    def nearest(self, query):
        return (self.vectors @ query.T).argmax(0)


encoder = nn.Linear(20, 32).to(device).eval()
index = Index(32)
for request in range(50):
    with torch.inference_mode():
        code = encoder(torch.randn(4, 20, device=device))
        index.add(code)
        index.nearest(code)
