import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
features = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1)).to(device).eval()
for p in features.parameters():
    p.requires_grad_(False)


def gram(x):
    f = x.flatten(2)
    return f @ f.transpose(1, 2) / f.numel()


content = torch.rand(1, 3, 10, 10, device=device)
style_gram = gram(features(torch.rand(1, 3, 10, 10, device=device)))
content_features = features(content)
image = content.clone().requires_grad_(True)
optimizer = torch.optim.Adam([image], lr=0.02)
frames = []
for step in range(24):
    f = features(image)
    loss = (f - content_features).pow(2).mean() + 1e3 * (gram(f) - style_gram).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    frames.append(image.clamp(0, 1).cpu())  # leak: holder=frames kind=graph
print(len(frames), "frames for the animation")
