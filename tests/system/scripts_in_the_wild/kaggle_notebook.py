"""Cells of a Kaggle notebook: seed_everything, a custom Dataset, KFold, the best state saved, predictions as NumPy
arrays."""

import copy
import gc
import os
import random

import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold
from torch.utils.data import DataLoader, Dataset

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
print("memory: using", device, torch.cuda.get_device_name(0) if torch.cuda.is_available() else "")


def seed_everything(seed):
    random.seed(seed)
    os.environ["PYTHONHASHSEED"] = str(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    torch.backends.cudnn.deterministic = True


class DigitsDataset(Dataset):
    def __init__(self, X, y=None):
        self.X, self.y = X, y

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        x = torch.tensor(self.X[i], dtype=torch.float)
        return (x, torch.tensor(self.y[i], dtype=torch.long)) if self.y is not None else x


def train_fn(model, loader, optimizer, scheduler, loss_fn):
    model.train()
    final = 0
    for x, y in loader:
        optimizer.zero_grad()
        x, y = x.to(device), y.to(device)
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        final += loss.item()
    return final / len(loader)


def inference_fn(model, loader):
    model.eval()
    preds = []
    for batch in loader:
        x = batch[0].to(device) if isinstance(batch, (list, tuple)) else batch.to(device)
        with torch.no_grad():
            preds.append(model(x).softmax(1).detach().cpu().numpy())
    return np.concatenate(preds)


seed_everything(42)
X, y = load_digits(return_X_y=True)
X, y = X[:300] / 16.0, y[:300]
oof = np.zeros((len(X), 10))
for fold, (trn, val) in enumerate(StratifiedKFold(2, shuffle=True, random_state=0).split(X, y)):
    model = nn.Sequential(
        nn.BatchNorm1d(64), nn.Dropout(0.1), nn.utils.parametrizations.weight_norm(nn.Linear(64, 32)),
        nn.LeakyReLU(), nn.Linear(32, 10),
    )  # fmt: skip
    model.to(device)
    train_loader = DataLoader(DigitsDataset(X[trn], y[trn]), batch_size=32, shuffle=True, drop_last=True)
    valid_loader = DataLoader(DigitsDataset(X[val], y[val]), batch_size=64)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1e-2, epochs=3, steps_per_epoch=len(train_loader)
    )
    best, best_state = -1, None
    for _epoch in range(3):
        train_loss = train_fn(model, train_loader, optimizer, scheduler, nn.CrossEntropyLoss())
        preds = inference_fn(model, valid_loader)
        score = f1_score(y[val], preds.argmax(1), average="macro")
        print(fold, train_loss, score)
        if score > best:
            best, best_state = score, copy.deepcopy(model.state_dict())
    model.load_state_dict(best_state)
    oof[val] = inference_fn(model, valid_loader)
    del model, optimizer, scheduler, best_state
    gc.collect()
    torch.cuda.empty_cache()
print("cv", f1_score(y, oof.argmax(1), average="macro"), oof.sum())
print("memory: allocated", torch.cuda.memory_allocated())
