import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
rnn = nn.LSTM(6, 12, batch_first=True).to(device)
head = nn.Linear(12, 6).to(device)
optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()])
state = None
for chunk in range(40):
    x = torch.randn(3, 7, 6, device=device)
    output, state = rnn(x, state)
    state = tuple(s.detach() for s in state)
    loss = (head(output) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
