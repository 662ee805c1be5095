import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Service:
    def __init__(self):
        self.encoder = nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48)).to(device)
        self.encoder.eval()
        self.results = {}

    @torch.inference_mode()
    def handle(self, number, x):
        embedding = self.encoder(x.to(device))
        self.results[f"request-{number}"] = embedding  # leak: holder=results kind=tensor
        return embedding.norm().item()


service = Service()
total = 0.0
for number in range(80):
    total += service.handle(number, torch.randn(16, 48))
print(total)
