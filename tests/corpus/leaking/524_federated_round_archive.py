import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Client:
    def __init__(self, cid):
        self.cid = cid
        self.x = torch.randn(20, 6, device=device)
        self.y = (self.x.sum(1, keepdim=True) > 0).float()

    def fit(self, parameters):
        model = nn.Linear(6, 1).to(device)
        model.load_state_dict(parameters)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = nn.functional.binary_cross_entropy_with_logits(model(self.x), self.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return model.state_dict()


class Server:
    def __init__(self, clients):
        self.clients = clients
        self.global_model = nn.Linear(6, 1).to(device)
        self.archive = {}

    def run_round(self, number):
        updates = {c.cid: c.fit(self.global_model.state_dict()) for c in self.clients}
        self.archive[number] = updates  # leak: holder=archive|server kind=tensor
        mean = {k: torch.stack([u[k] for u in updates.values()]).mean(0) for k in self.global_model.state_dict()}
        self.global_model.load_state_dict(mean)


server = Server([Client(i) for i in range(3)])
for round_number in range(14):
    server.run_round(round_number)
print("rounds kept:", len(server.archive))
