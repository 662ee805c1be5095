"""An image trainer in the style of timm: channels_last, the old AMP API, EMA, mixup, AverageMeter, cudnn.benchmark,
cosine warm-up."""

from collections import OrderedDict
from copy import deepcopy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.cuda.amp import GradScaler, autocast

torch.backends.cudnn.benchmark = True
torch.manual_seed(42)
np.random.seed(42)
device = torch.device("cuda")


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / self.count


class ModelEma(nn.Module):
    def __init__(self, model, decay=0.9, device=None):
        super().__init__()
        self.module = deepcopy(model)
        self.module.eval()
        self.decay = decay
        self.device = device
        if self.device is not None:
            self.module.to(device=device)

    @torch.no_grad()
    def update(self, model):
        for ema_v, model_v in zip(self.module.state_dict().values(), model.state_dict().values()):
            if self.device is not None:
                model_v = model_v.to(device=self.device)
            ema_v.copy_(self.decay * ema_v + (1.0 - self.decay) * model_v)


class SEBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv = nn.Conv2d(c, c, 3, padding=1, groups=c, bias=False)
        self.bn = nn.BatchNorm2d(c)
        self.fc = nn.Sequential(nn.Conv2d(c, c // 4, 1), nn.SiLU(inplace=True), nn.Conv2d(c // 4, c, 1))

    def forward(self, x):
        y = F.silu(self.bn(self.conv(x)), inplace=True)
        return x + y * self.fc(F.adaptive_avg_pool2d(y, 1)).sigmoid()


def mixup(x, target, num_classes, lam):
    off = F.one_hot(target, num_classes).float()
    x.mul_(lam).add_(x.flip(0), alpha=1.0 - lam)
    return x, off * lam + off.flip(0) * (1.0 - lam)


model = nn.Sequential(
    nn.Conv2d(3, 16, 3, stride=2, padding=1), SEBlock(16), nn.Conv2d(16, 32, 3, stride=2, padding=1),
    SEBlock(32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5),
)  # fmt: skip
model.cuda()
model = model.to(memory_format=torch.channels_last)
ema = ModelEma(model)
ema_on_host = ModelEma(model, device="cpu")
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.9, momentum=0.9, eps=1e-3)
scheduler = torch.optim.lr_scheduler.SequentialLR(
    optimizer,
    [
        torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4),
    ],
    milestones=[2],
)
scaler = GradScaler()
losses_m = AverageMeter()
mean = torch.tensor([0.485 * 255, 0.456 * 255, 0.406 * 255]).cuda().view(1, 3, 1, 1)
std = torch.tensor([0.229 * 255, 0.224 * 255, 0.225 * 255]).cuda().view(1, 3, 1, 1)

for step in range(4):
    raw = torch.from_numpy(np.random.randint(0, 256, (8, 3, 32, 32), dtype=np.uint8))
    input = raw.cuda(non_blocking=True).float().sub_(mean).div_(std)
    target = torch.from_numpy(np.random.randint(0, 5, 8)).cuda(non_blocking=True)
    input, target = mixup(input, target, 5, 0.7)
    input = input.contiguous(memory_format=torch.channels_last)
    with autocast():
        output = model(input)
        loss = torch.sum(-target * F.log_softmax(output, dim=-1), dim=-1).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward(create_graph=False)
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    ema.update(model)
    ema_on_host.update(model)
    scheduler.step()
    torch.cuda.synchronize()
    losses_m.update(loss.item(), input.size(0))
    print(step, loss.item(), scheduler.get_last_lr()[0], scaler.get_scale())
state = OrderedDict((k, v.cpu()) for k, v in ema.module.state_dict().items())
print(losses_m.avg, sum(float(v.double().sum()) for v in state.values()))
print(all(torch.equal(v, ema_on_host.module.state_dict()[k]) for k, v in state.items()))
