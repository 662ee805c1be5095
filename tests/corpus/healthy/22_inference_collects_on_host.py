import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(400, 6)), batch_size=10)
model = nn.Linear(6, 3).to(device)
model.eval()
scores = []
with torch.inference_mode():
    for (x,) in loader:
        scores.append(model(x.to(device)).softmax(1).cpu())
print(torch.cat(scores).shape)
