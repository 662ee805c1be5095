import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Callback:
    def on_train_batch_end(self, trainer, outputs):
        pass


class PredictionWriter(Callback):
    def __init__(self, every=1):
        self.every, self.predictions = every, []

    def on_train_batch_end(self, trainer, outputs):
        if trainer.global_step % self.every == 0:
            self.predictions.append(outputs["preds"])  # leak: holder=predictions kind=graph lint=accumulate


class Loop:
    def __init__(self, model, callbacks):
        self.model, self.callbacks, self.global_step = model, callbacks, 0

    def fit(self, loader):
        optimizer = torch.optim.Adam(self.model.parameters())
        for x in loader:
            preds = self.model(x)
            loss = preds.pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.global_step += 1
            for callback in self.callbacks:
                callback.on_train_batch_end(self, {"loss": loss.detach(), "preds": preds})  # also:


loader = [torch.randn(4, 11, device=device) for _ in range(20)]
Loop(nn.Linear(11, 3).to(device), [PredictionWriter()]).fit(loader)
