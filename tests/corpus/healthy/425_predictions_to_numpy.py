import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(22, 44), nn.LeakyReLU(), nn.Linear(44, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters())
train_dl = DataLoader(TensorDataset(torch.randn(120, 22)), batch_size=6)
test_dl = DataLoader(TensorDataset(torch.randn(60, 22)), batch_size=6)
submission = []

for (xb,) in train_dl:
    loss = (model(xb.to(device)) - xb.mean(1, keepdim=True).to(device)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

model.eval()
with torch.no_grad():
    for (xb,) in test_dl:
        submission.extend(model(xb.to(device)).squeeze(1).cpu().numpy().tolist())
print(len(submission))
