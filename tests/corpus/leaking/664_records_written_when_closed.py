import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Board:
    def __init__(self):
        self.waiting = []

    def add_image(self, name, image):
        self.waiting.append((name, image.detach().clone()))  # leak: holder=waiting kind=tensor

    def shut_down(self):
        print(len(self.waiting))
        self.waiting.clear()


board, net = Board(), nn.Conv2d(1, 1, 3, padding=1).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(50):
    out = net(torch.randn(2, 1, 8, 8, device=device))
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    board.add_image(f"sample/{step}", out[0])
board.shut_down()
