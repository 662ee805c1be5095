from collections import defaultdict

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class SessionRecommender(nn.Module):
    def __init__(self, n_items=80, dim=10):
        super().__init__()
        self.items = nn.Embedding(n_items, dim)
        self.sessions = defaultdict(list)

    def forward(self, users, clicked):
        vectors = self.items(clicked)
        for user, vector in zip(users.tolist(), vectors):
            self.sessions[user].append(vector)  # leak: holder=sessions|model kind=graph lint=accumulate
        context = torch.stack([torch.stack(self.sessions[u][-5:]).detach().mean(0) for u in users.tolist()])
        return (vectors + context) @ self.items.weight.t()


model = SessionRecommender().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(24):
    users = torch.randint(0, 12, (6,))
    clicked, following = torch.randint(0, 80, (2, 6), device=device)
    loss = nn.functional.cross_entropy(model(users, clicked), following)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
