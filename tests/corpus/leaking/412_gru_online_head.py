import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Forecaster(nn.Module):
    def __init__(self, n_features=3, hidden_size=12):
        super().__init__()
        self.gru = nn.GRU(n_features, hidden_size, batch_first=True)
        self.head = nn.Linear(hidden_size, n_features)

    def forward(self, x, h=None):
        out, h = self.gru(x, h)
        return self.head(out[:, -1]), h


model = Forecaster().to(device)
# the encoder comes from pre-training, only the head is adapted online
optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-3)
series = torch.cumsum(torch.randn(1, 260, 3), dim=1).to(device)
h = None
for t in range(0, 250, 10):
    window, target = series[:, t : t + 9], series[:, t + 9]
    pred, h = model(window, h)  # leak: holder=h kind=graph lint=hidden-state
    loss = (pred - target).pow(2).mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)  # lint: retain-graph
    optimizer.step()
