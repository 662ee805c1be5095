import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Past:
    def __init__(self):
        self.keys = None

    def add(self, key):
        self.keys = key if self.keys is None else torch.cat([self.keys, key], dim=1)
        return self.keys


class Server:
    def __init__(self):
        self.layer, self.active = nn.Linear(16, 16).to(device).eval(), {}

    @torch.no_grad()
    def answer(self, number, length):
        past = self.active.setdefault(number, Past())
        x = torch.randn(1, 1, 16, device=device)
        for _ in range(length):
            x = past.add(self.layer(x)).mean(1, keepdim=True)
        del self.active[number]
        return x.norm().item()


server = Server()
print(sum(server.answer(number, 10 + 7 * number % 25) for number in range(12)))
