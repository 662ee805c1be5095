"""Snippets from tutorials: emptied caches, accumulated losses, del in loops, evaluation under no_grad, transfer
learning."""

import gc

import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


def gpu_usage():
    free, total = torch.cuda.mem_get_info()
    print(
        "memory: |",
        f"{100 * (total - free) / max(total, 1):.0f}%",
        torch.cuda.memory_allocated(),
        torch.cuda.memory_reserved(),
    )


print("Initial GPU Usage")
gpu_usage()
tensorList = []
for _x in range(10):
    tensorList.append(torch.randn(100000, 10).cuda())
gpu_usage()
del tensorList
gpu_usage()
torch.cuda.empty_cache()
gpu_usage()

total_loss = 0
for _x in range(10):
    iter_loss = torch.randn(3, 4).mean()
    iter_loss.requires_grad = True
    total_loss += iter_loss
print(total_loss.item(), total_loss.grad_fn is not None)

model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4), nn.LogSoftmax(1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.NLLLoss()
total_loss = 0
for _i in range(5):
    input, target = torch.randn(8, 16, device=device), torch.randint(0, 4, (8,), device=device)
    optimizer.zero_grad()
    output = model(input)
    loss = criterion(output, target)
    loss.backward()
    optimizer.step()
    total_loss += loss
print(total_loss.item())

result = torch.zeros(8, 4, device=device)
for _i in range(5):
    intermediate = model(input)
    result += intermediate.exp().detach()
    del intermediate
print(result.sum().item())

test_loss = correct = 0
with torch.no_grad():
    for _ in range(2):
        data, target = torch.randn(8, 16).cuda(), torch.randint(0, 4, (8,)).cuda()
        output = model(data)
        test_loss += F.nll_loss(output, target, size_average=False).item()
        pred = output.data.max(1, keepdim=True)[1]
        correct += pred.eq(target.data.view_as(pred)).sum()
print(test_loss, correct.item())


class MyNewNet(nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.linear_layers = nn.Linear(4, 1)

    def forward(self, x):
        return self.linear_layers(self.backbone(x))


my_model = MyNewNet(model).to(device)
for param in my_model.parameters():
    param.requires_grad = False
for param in my_model.linear_layers.parameters():
    param.requires_grad = True
optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, my_model.parameters()))
scaler = torch.cuda.amp.GradScaler()
for _ in range(3):
    train_x, train_y = torch.randn(8, 16).to(device), torch.rand(8, 1).to(device)
    optimizer.zero_grad()
    with torch.cuda.amp.autocast():
        outputs = my_model(train_x)
        loss = F.mse_loss(outputs, train_y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    print(loss.item(), [p.grad is None for p in my_model.parameters()])
for name in my_model.state_dict():
    print(name, "\t", my_model.state_dict()[name].size())
half = nn.Linear(4, 4).cuda().half()
print(half(torch.ones(1, 4).cuda().half()).float().sum().item(), half.weight.dtype)
del train_x, train_y, outputs, loss
gc.collect()
torch.cuda.empty_cache()
gpu_usage()
