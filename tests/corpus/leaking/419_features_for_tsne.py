import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
backbone = nn.Sequential(nn.Linear(18, 32), nn.ReLU()).to(device)
classifier = nn.Linear(32, 5).to(device)
params = list(backbone.parameters()) + list(classifier.parameters())
optimizer = torch.optim.Adam(params, lr=1e-3)

features = None
for step in range(26):
    x = torch.randn(8, 18, device=device)
    y = torch.randint(0, 5, (8,), device=device)
    feat = backbone(x)
    loss = nn.functional.cross_entropy(classifier(feat), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if features is None:
        features = feat.detach()
    else:
        features = torch.cat((features, feat.detach()), dim=0)  # leak: holder=features kind=larger
print(features.shape)
