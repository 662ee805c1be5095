import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Chat:
    def __init__(self, layer):
        self.layer, self.keys = layer, []

    @torch.no_grad()
    def answer(self, prompt, length):
        self.keys = []
        x = prompt
        for _ in range(length):
            self.keys.append(self.layer(x))
            x = torch.stack(self.keys).mean(0)
        return x.norm().item()


chat = Chat(nn.Linear(16, 16).to(device).eval())
print(chat.answer(torch.randn(1, 16, device=device), 40))
