import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class EmbeddingNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(20, 40), nn.PReLU(), nn.Linear(40, 6))

    def forward(self, x):
        return F.normalize(self.fc(x), dim=-1)


def build_gallery(model, loader):
    model.eval()
    gallery, ids = [], []
    for x, identity in loader:
        emb = model(x.to(device)).cpu()  # lint: no-grad
        gallery.append(emb)  # leak: holder=gallery|ids kind=graph lint=accumulate
        ids.append(identity)  # also:
    return torch.cat(gallery), torch.cat(ids)


loader = DataLoader(TensorDataset(torch.randn(250, 20), torch.arange(250)), batch_size=10)
gallery, ids = build_gallery(EmbeddingNet().to(device), loader)
print(gallery.shape, ids.shape)
