import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class StatefulLSTM(nn.Module):
    def __init__(self, n_features=2, width=10):
        super().__init__()
        self.lstm = nn.LSTM(n_features, width, batch_first=True)
        self.head = nn.Linear(width, 1)
        self.state = None

    def reset_state(self):
        self.state = None

    def forward(self, x):
        if self.state is not None:
            self.state = tuple(s.detach() for s in self.state)
        out, self.state = self.lstm(x, self.state)
        return self.head(out[:, -1])


model = StatefulLSTM().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(3):
    model.reset_state()
    series = torch.cumsum(torch.randn(4, 80, 2, device=device), dim=1)
    for t in range(0, 70, 7):
        prediction = model(series[:, t : t + 7])
        loss = (prediction - series[:, t + 7, :1]).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
