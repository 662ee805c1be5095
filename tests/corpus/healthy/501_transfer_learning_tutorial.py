import copy

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
sets = {p: TensorDataset(torch.randn(n, 12), torch.randint(0, 2, (n,))) for p, n in (("train", 48), ("val", 24))}
dataloaders = {p: DataLoader(s, batch_size=6, shuffle=True) for p, s in sets.items()}


def train_model(model, criterion, optimizer, scheduler, num_epochs=4):
    best_model_wts = copy.deepcopy(model.state_dict())
    best_acc = 0.0
    for epoch in range(num_epochs):
        for phase in ["train", "val"]:
            model.train() if phase == "train" else model.eval()
            running_loss = 0.0
            running_corrects = 0
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
                running_corrects += torch.sum(preds == labels)
            if phase == "train":
                scheduler.step()
            epoch_acc = running_corrects.double() / len(sets[phase])
            print(f"{phase} Loss: {running_loss / len(sets[phase]):.4f} Acc: {epoch_acc:.4f}")
            if phase == "val" and epoch_acc > best_acc:
                best_acc = epoch_acc
                best_model_wts = copy.deepcopy(model.state_dict())
    model.load_state_dict(best_model_wts)
    return model


net = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 2)).to(device)
opt = optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
train_model(net, nn.CrossEntropyLoss(), opt, optim.lr_scheduler.StepLR(opt, step_size=2))
