import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


def predict(net, dl):
    net.eval()
    preds = []
    for (xb,) in dl:
        out = net(xb.to(device))  # lint: no-grad
        preds += [out]  # leak: holder=preds kind=graph lint=accumulate
    return torch.cat(preds)


net = nn.Sequential(nn.Linear(22, 44), nn.LeakyReLU(), nn.Linear(44, 1)).to(device)
dl = DataLoader(TensorDataset(torch.randn(144, 22)), batch_size=6)
submission = predict(net, dl).squeeze(1).tolist()
print(submission[:3])
