import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


def nested_concat(tensors, new):
    if isinstance(tensors, dict):
        return {key: nested_concat(value, new[key]) for key, value in tensors.items()}
    return torch.cat((tensors, new), dim=0)


class Evaluator:
    def __init__(self, model):
        self.model = model.eval()

    def prediction_step(self, x):
        hidden = self.model[:2](x.to(device))  # lint: no-grad
        return {"logits": self.model[2](hidden), "hidden": hidden}

    def evaluate(self, loader):
        all_preds = None
        for (x,) in loader:
            preds = self.prediction_step(x)
            all_preds = preds if all_preds is None else nested_concat(all_preds, preds)  # leak: holder=all_preds kind=graph lint=accumulate
        return all_preds["logits"].argmax(-1)


model = nn.Sequential(nn.Linear(10, 14), nn.ReLU(), nn.Linear(14, 3)).to(device)
print(Evaluator(model).evaluate(DataLoader(TensorDataset(torch.randn(220, 10)), batch_size=10)).shape)
