import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def attach(model):
    for name, layer in model.named_children():

        def hook(module, inputs, output, name=name, store={}):
            store.setdefault(name, []).append(output)  # leak: holder=store kind=graph|tensor

        layer.register_forward_hook(hook)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(10, 20), nn.Linear(20, 1)

    def forward(self, x):
        return self.second(self.first(x).relu())


net = Net().to(device)
attach(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(40):
    loss = net(torch.randn(8, 10, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
