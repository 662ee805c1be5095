import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Attention(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x, past):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=1), torch.cat([past[1], v], dim=1)
        return torch.softmax(q @ k.transpose(1, 2), dim=-1) @ v, (k, v)


@torch.inference_mode()
def generate(layer, length):
    x, past = torch.randn(1, 1, 24, device=device), None
    for _ in range(length):
        x, past = layer(x, past)
    return x


print(generate(Attention().to(device).eval(), 60).norm().item())
