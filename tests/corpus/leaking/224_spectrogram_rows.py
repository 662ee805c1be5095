import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
spectrogram = torch.zeros(1, 32, device=device)
for frame in range(24):
    signal = torch.randn(32, device=device)
    predicted = model(signal)
    loss = (predicted - signal.flip(0)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    spectrogram = torch.vstack((spectrogram, predicted.detach().abs()))  # leak: holder=spectrogram kind=larger
print(spectrogram.shape)
