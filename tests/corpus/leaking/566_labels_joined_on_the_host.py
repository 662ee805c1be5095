import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
loader = DataLoader(TensorDataset(torch.randn(175, 12)), batch_size=7)
model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 3)).to(device)
model.eval()

y_predlabel = torch.zeros(0, 3)
for (x,) in loader:
    batch_y_predlabel = model(x.to(device))  # lint: no-grad
    y_predlabel = torch.cat((y_predlabel, batch_y_predlabel.cpu()))  # leak: holder=y_predlabel kind=graph lint=accumulate
print(y_predlabel.argmax(1).bincount())
