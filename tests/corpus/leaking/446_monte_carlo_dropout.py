import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(10, 30), nn.ReLU(), nn.Dropout(0.5), nn.Linear(30, 2)).to(device)
x_test = torch.randn(40, 10, device=device)


def mc_predict(model, x, n_samples=30):
    model.train()  # keep dropout on
    samples = []
    for _ in range(n_samples):
        samples.append(torch.softmax(model(x), dim=-1))  # leak: holder=samples kind=graph lint=accumulate
    samples = torch.stack(samples)
    return samples.mean(0), samples.var(0)


mean, var = mc_predict(model, x_test)
print(mean[0].tolist(), var.mean().item())
