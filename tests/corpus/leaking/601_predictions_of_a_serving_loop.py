import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 256)).to(device).eval()


@torch.no_grad()
def main():
    answers = []
    for request in range(60):
        x = torch.randn(32, 64, device=device)
        answers.append(model(x))  # leak: holder=answers kind=tensor
    print(len(answers))


main()
