import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Conv1d(4, 8, 3, padding=1).to(device).eval()
window = torch.zeros(1, 4, 0, device=device)
with torch.inference_mode():
    for frame in range(60):
        window = torch.cat([window, torch.randn(1, 4, 1, device=device)], dim=2)
        if window.shape[2] > 16:
            window = window[:, :, -16:]
        model(window)
