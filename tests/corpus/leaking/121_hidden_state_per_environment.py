import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class RecurrentPolicy(nn.Module):
    def __init__(self):
        super().__init__()
        self.core = nn.GRUCell(5, 12)
        self.value = nn.Linear(12, 1)
        self.hidden = {}

    def act(self, env_id, observation):
        state = self.hidden.get(env_id)
        self.hidden[env_id] = self.core(observation, state)  # leak: holder=hidden kind=graph lint=hidden-state
        return self.value(self.hidden[env_id].detach())


policy = RecurrentPolicy().to(device)
optimizer = torch.optim.Adam(policy.value.parameters(), lr=1e-3)
for step in range(20):
    values = [policy.act(env_id, torch.randn(1, 5, device=device)) for env_id in ("left", "right")]
    loss = torch.cat(values).sub(1.0).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
