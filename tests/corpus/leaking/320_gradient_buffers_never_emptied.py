import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class FederatedServer:
    def __init__(self, model):
        self.model = model
        self.updates = {name: [] for name, _ in model.named_parameters()}

    def receive(self, gradients):
        for name, gradient in gradients.items():
            self.updates[name].append(gradient)  # leak: holder=updates kind=tensor

    @torch.no_grad()
    def apply(self, rate=0.1, clients=3):
        for name, parameter in self.model.named_parameters():
            parameter -= rate * torch.stack(self.updates[name][-clients:]).mean(0)


model = nn.Linear(7, 2).to(device)
server = FederatedServer(model)
for round_number in range(16):
    for client in range(3):
        loss = model(torch.randn(5, 7, device=device)).square().mean()
        model.zero_grad()
        loss.backward()
        server.receive({name: p.grad.clone() for name, p in model.named_parameters()})
    server.apply()
