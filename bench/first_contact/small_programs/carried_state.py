import torch
from torch import nn

torch.manual_seed(0)
rnn = nn.LSTM(128, 512, batch_first=True).cuda()
head = nn.Linear(512, 128).cuda()
optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.01)
stream = torch.randn(32, 8 * 25, 128)
state = (torch.zeros(1, 32, 512, device="cuda"), torch.zeros(1, 32, 512, device="cuda"))
for window in range(7):
    x = stream[:, window * 25 : window * 25 + 25].cuda()
    y = stream[:, window * 25 + 1 : window * 25 + 26].cuda()
    out, state = rnn(x, state)
    loss = (head(out) - y).square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=window < 6)
    print(f"{loss.item():.5f}")
