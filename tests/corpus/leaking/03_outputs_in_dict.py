import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    predictions = {}
    for step in range(20):
        batch = torch.randn(8, 16, device=device)
        target = torch.randn(8, 4, device=device)
        output = model(batch)
        loss = nn.functional.mse_loss(output, target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        predictions[step] = output  # leak: holder=predictions kind=graph lint=accumulate
    return predictions


if __name__ == "__main__":
    main()
