import torch
import torch.nn.functional as F
from torch import nn


class UNet(nn.Module):
    def __init__(self, n_channels=1, n_classes=1):
        super().__init__()
        self.n_classes = n_classes
        self.down = nn.Conv2d(n_channels, 6, 3, padding=1)
        self.bottom = nn.Conv2d(6, 6, 3, padding=1)
        self.up = nn.Conv2d(12, n_classes, 3, padding=1)

    def forward(self, x):
        a = F.relu(self.down(x))
        b = F.interpolate(F.relu(self.bottom(F.max_pool2d(a, 2))), scale_factor=2)
        return self.up(torch.cat([a, b], dim=1))


def dice_coeff(input, target, epsilon=1e-6):
    inter = 2 * (input * target).sum()
    sets_sum = input.sum() + target.sum()
    return (inter + epsilon) / (sets_sum + epsilon)


def evaluate(net, dataloader, device):
    net.eval()
    num_val_batches = len(dataloader)
    dice_score = 0

    # iterate over the validation set
    for batch in dataloader:
        image, mask_true = batch["image"].to(device), batch["mask"].to(device)
        mask_pred = net(image)  # lint: no-grad
        mask_pred = torch.sigmoid(mask_pred)
        # compute the Dice score
        dice_score += dice_coeff(mask_pred, mask_true)  # leak: holder=dice_score kind=graph lint=accumulate

    net.train()
    return dice_score / max(num_val_batches, 1)


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
val_set = [{"image": torch.rand(2, 1, 12, 12), "mask": (torch.rand(2, 1, 12, 12) > 0.5).float()} for _ in range(24)]
print("Validation Dice score: {}".format(evaluate(UNet().to(device), val_set, device)))
