import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class DepthModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Conv2d(3, 6, 3, padding=1)
        self.decoder = nn.Conv2d(6, 1, 3, padding=1)

    def training_step(self, batch):
        inv_depth = torch.sigmoid(self.decoder(torch.relu(self.encoder(batch["rgb"]))))
        loss = (inv_depth - batch["depth"]).abs().mean()
        return {"loss": loss, "metrics": {"photometric": float(loss) * 0.85}}

    def training_epoch_end(self, outputs):
        return sum(o["loss"].item() for o in outputs) / len(outputs)


class HorovodTrainer:
    def __init__(self, max_epochs=2):
        self.max_epochs = max_epochs

    def fit(self, module, make_loader):
        optimizer = torch.optim.Adam(module.parameters(), lr=2e-4)
        for epoch in range(self.max_epochs):
            average = self.train(make_loader(), module, optimizer)
            print(f"E: {epoch + 1} avg.loss {average:.4f}")

    def train(self, dataloader, module, optimizer):
        module.train()
        outputs = []
        for i, batch in enumerate(dataloader):
            batch = {k: v.to(DEVICE) for k, v in batch.items()}
            optimizer.zero_grad()
            output = module.training_step(batch)
            output["loss"].backward()
            optimizer.step()
            outputs.append(output)  # leak: holder=outputs kind=graph lint=accumulate
        return module.training_epoch_end(outputs)


def make_loader(n=16):
    return ({"rgb": torch.rand(2, 3, 10, 10), "depth": torch.rand(2, 1, 10, 10)} for _ in range(n))


HorovodTrainer().fit(DepthModel().to(DEVICE), make_loader)
