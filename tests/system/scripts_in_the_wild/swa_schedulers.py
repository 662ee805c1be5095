"""AveragedModel, SWALR, update_bn, an EMA with multi_avg_fn, and common schedulers, including ReduceLROnPlateau."""

import torch
from torch import nn, optim
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

torch.manual_seed(0)
device = torch.device("cuda:0")
model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2)).to(
    device
)
swa_model = AveragedModel(model)
ema_model = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), device=device, use_buffers=True)
loader = [(torch.randn(8, 2, 8), torch.randint(0, 2, (8,))) for _ in range(3)]
optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
plateau = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
swa_scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
for epoch in range(4):
    total = torch.zeros((), device=device)
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        ema_model.update_parameters(model)
        total += loss.detach()
    if epoch > 1:
        swa_model.update_parameters(model)
        swa_scheduler.step()
    else:
        plateau.step(total)
    print(epoch, (total / len(loader)).item(), optimizer.param_groups[0]["lr"])
update_bn(loader, swa_model, device=device)
with torch.no_grad():
    print(swa_model(loader[0][0].to(device)).sum().item(), ema_model(loader[0][0].to(device)).sum().item())
    print(swa_model.n_averaged.item(), swa_model.n_averaged.device.type)

for make in (
    lambda o: lr_scheduler.StepLR(o, 1),
    lambda o: lr_scheduler.MultiStepLR(o, [1, 2]),
    lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, cycle_momentum=False),
    lambda o: lr_scheduler.LambdaLR(o, lambda e: 0.95**e),
    lambda o: lr_scheduler.PolynomialLR(o, 4),
):
    for kind in (optim.Adam, optim.NAdam, optim.RAdam, optim.Adadelta, optim.Rprop):
        torch.manual_seed(1)
        layer = nn.Linear(3, 3, device=device)
        extra = {"momentum": 0.9} if kind is optim.SGD else {}
        opt = kind(layer.parameters(), lr=0.1, **extra)
        schedule = make(opt)
        for _ in range(3):
            opt.zero_grad()
            layer(torch.ones(2, 3, device=device)).pow(2).sum().backward()
            opt.step()
            schedule.step()
        print(type(schedule).__name__, kind.__name__, layer.weight.sum().item())
