"""Siamese and contrastive training: shared towers, triplets, in-batch negatives (CLIP, SimCLR) with arange labels."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 8))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class CLIPLike(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = Tower(), Tower()
        self.logit_scale = nn.Parameter(torch.ones([]) * np.log(1 / 0.07))

    def forward(self, image, text):
        logits = self.logit_scale.exp() * self.image(image) @ self.text(text).t()
        labels = torch.arange(len(logits), device=logits.device)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


def info_nce_loss(features, batch_size, temperature=0.5):
    labels = torch.cat([torch.arange(batch_size) for _ in range(2)], dim=0)
    labels = (labels.unsqueeze(0) == labels.unsqueeze(1)).float().to(device)
    similarity = torch.matmul(features, features.T)
    mask = torch.eye(labels.shape[0], dtype=torch.bool).to(device)
    labels = labels[~mask].view(labels.shape[0], -1)
    similarity = similarity[~mask].view(similarity.shape[0], -1)
    positives = similarity[labels.bool()].view(labels.shape[0], -1)
    negatives = similarity[~labels.bool()].view(similarity.shape[0], -1)
    logits = torch.cat([positives, negatives], dim=1)
    return F.cross_entropy(logits / temperature, torch.zeros(logits.shape[0], dtype=torch.long).to(device))


clip, tower = CLIPLike().to(device), Tower().to(device)
optimizer = torch.optim.AdamW(
    [{"params": clip.parameters()}, {"params": tower.parameters(), "lr": 1e-2}], lr=1e-3
)
margin = nn.TripletMarginLoss(margin=1.0)
for step in range(3):
    left, right = torch.randn(6, 12), torch.randn(6, 12)
    left, right = left.to(device), right.to(device)
    same = torch.randint(0, 2, (6,)).to(device)
    distance = F.pairwise_distance(tower(left), tower(right))
    siamese = torch.mean((1 - same) * distance.pow(2) + same * torch.clamp(2.0 - distance, min=0.0).pow(2))
    loss = clip(left, right) + siamese + info_nce_loss(torch.cat([tower(left), tower(right)]), 6)
    loss = (
        loss
        + margin(tower(left), tower(right), tower(left.flip(0)))
        + nn.CosineEmbeddingLoss()(tower(left), tower(right), same * 2 - 1)
    )
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        clip.logit_scale.clamp_(0, np.log(100))
    print(step, loss.item(), clip.logit_scale.item())
