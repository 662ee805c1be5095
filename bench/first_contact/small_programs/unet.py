import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", "-b", type=int, default=8)
args = parser.parse_args()
torch.manual_seed(0)


def block(inside, outside):
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(inplace=True)
    )


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.middle = block(3, 16), block(16, 32), block(32, 64)
        self.up2, self.up1 = block(96, 32), block(48, 16)
        self.out = nn.Conv2d(16, 2, 1)
        self.pool, self.up = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)

    def forward(self, x):
        first = self.down1(x)
        second = self.down2(self.pool(first))
        x = self.up2(torch.cat([second, self.up(self.middle(self.pool(second)))], 1))
        return self.out(self.up1(torch.cat([first, self.up(x)], 1)))


data = TensorDataset(torch.randn(24, 3, 128, 128), torch.randint(0, 2, (24, 128, 128)))
loader = DataLoader(data, args.batch_size, shuffle=True, drop_last=True)
model = UNet().to("cuda")
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-5, momentum=0.9)
for images, masks in loader:
    predicted = model(images.to("cuda"))
    loss = nn.functional.cross_entropy(predicted, masks.to("cuda"))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
print("done")
