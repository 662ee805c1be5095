"""The transfer learning tutorial: a ResNet, a dict of loaders per phase, the best weights, a frozen backbone and
pruning."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.nn.utils.prune as prune
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class BasicBlock(nn.Module):
    def __init__(self, inp, out, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inp, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.downsample = None
        if stride != 1 or inp != out:
            self.downsample = nn.Sequential(nn.Conv2d(inp, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        out += identity
        return F.relu(out, inplace=True)


class ResNet(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)
        )
        self.layer1, self.layer2 = BasicBlock(8, 8), BasicBlock(8, 16, 2)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(16, num_classes)

    def forward(self, x):
        return self.fc(torch.flatten(self.avgpool(self.layer2(self.layer1(self.stem(x)))), 1))


model = ResNet()
for param in model.parameters():
    param.requires_grad = False
model.fc = nn.Linear(model.fc.in_features, 2)
for param in model.layer2.parameters():
    param.requires_grad_(True)
model = model.to(device)
criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])).to(device)
optimizer = torch.optim.SGD(
    [{"params": model.fc.parameters(), "lr": 0.01}, {"params": model.layer2.parameters()}],
    lr=0.001,
    momentum=0.9,
)
data = TensorDataset(torch.rand(8, 3, 48, 48), torch.randint(0, 2, (8,)))
dataloaders = {phase: DataLoader(data, batch_size=4, shuffle=phase == "train") for phase in ("train", "val")}
best, best_acc = copy.deepcopy(model.state_dict()), -1.0
for epoch in range(2):
    for phase in ("train", "val"):
        model.train(phase == "train")
        running_loss, running_corrects = 0.0, 0
        for inputs, labels in dataloaders[phase]:
            inputs, labels = inputs.to(device), labels.to(device)
            optimizer.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                outputs = model(inputs)
                _, preds = torch.max(outputs, 1)
                loss = criterion(outputs, labels)
                if phase == "train":
                    loss.backward()
                    optimizer.step()
            running_loss += loss.item() * inputs.size(0)
            running_corrects += torch.sum(preds == labels.data)
        acc = running_corrects.double() / len(data)
        print(epoch, phase, running_loss / len(data), f"{acc:.4f}")
        if phase == "val" and acc > best_acc:
            best_acc, best = acc, copy.deepcopy(model.state_dict())
model.load_state_dict(best)
prune.l1_unstructured(model.fc, name="weight", amount=0.5)
print((model.fc.weight == 0).sum().item(), model.fc.weight_mask.device == device)
features = {}
model.layer1.register_forward_hook(lambda m, i, o: features.update(layer1=o.detach()))
fused = torch.nn.utils.fusion.fuse_conv_bn_eval(model.layer1.conv1.eval(), model.layer1.bn1.eval())
with torch.no_grad():
    model(inputs)
    print(
        features["layer1"].mean().item(),
        fused.weight.device == device,
        fused(features["layer1"]).sum().item(),
    )
matrix = torch.zeros(2, 2, device=device)
for t, p in zip(labels.view(-1), preds.view(-1)):
    matrix[t.long(), p.long()] += 1
print(matrix.diag().sum().item(), (matrix.diag() / matrix.sum(1).clamp(min=1)).tolist())
