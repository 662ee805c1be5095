import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


def main(num_epochs=3):
    dataset = TensorDataset(torch.randn(90, 4, 4), torch.randn(90, 4))
    loader = DataLoader(dataset, batch_size=10, shuffle=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.Mish(), nn.Linear(32, 4)).to(device)
    optimizer = torch.optim.NAdam(model.parameters())
    epoch_losses = {}
    for epoch in range(num_epochs):
        for features, target in loader:
            optimizer.zero_grad()
            output = model(features.to(device))
            loss = nn.functional.l1_loss(output, target.to(device))
            loss.backward()
            optimizer.step()
            epoch_losses.setdefault(epoch, []).append(loss)  # leak: holder=epoch_losses kind=graph lint=accumulate
        mean = sum(epoch_losses[epoch]) / len(epoch_losses[epoch])
        print("epoch {} mean loss {:.4f}".format(epoch, mean.item()))


if __name__ == "__main__":
    main()
