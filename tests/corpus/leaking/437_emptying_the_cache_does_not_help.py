import gc

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Conv1d(2, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 10, 2)).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
batch_losses = []

for epoch in range(2):
    for i in range(12):
        signal = torch.randn(5, 2, 12).to(device)
        label = torch.randint(0, 2, (5,)).to(device)
        optimizer.zero_grad()
        output = model(signal)
        loss = criterion(output, label)
        loss.backward()
        optimizer.step()
        batch_losses.append(loss)  # leak: holder=batch_losses kind=graph lint=accumulate
        del signal, label, output, loss
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    print("epoch", epoch, "loss", sum(batch_losses).item() / len(batch_losses))
