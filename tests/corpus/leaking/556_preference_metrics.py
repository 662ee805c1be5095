from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class DPOTrainer:
    def __init__(self, model, ref, beta=0.1):
        self.model, self.ref, self.beta = model, ref, beta
        self.optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
        self._stored_metrics = defaultdict(lambda: defaultdict(list))

    def store_metrics(self, metrics, train_eval="train"):
        for key, value in metrics.items():
            self._stored_metrics[train_eval][key].append(value)  # leak: holder=_stored_metrics|trainer kind=graph

    def get_batch_loss_metrics(self, chosen, rejected):
        with torch.no_grad():
            ref_gap = self.ref(chosen) - self.ref(rejected)
        chosen_logps, rejected_logps = self.model(chosen), self.model(rejected)
        losses = -F.logsigmoid(self.beta * (chosen_logps - rejected_logps - ref_gap))
        return losses.mean(), {"logps/chosen": chosen_logps.mean(), "logps/rejected": rejected_logps.mean()}

    def training_step(self, chosen, rejected):
        loss, metrics = self.get_batch_loss_metrics(chosen, rejected)
        self.store_metrics(metrics)  # also: lint=accumulate
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def scorer():
    return nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 1)).to(device)


trainer = DPOTrainer(scorer(), scorer())
for _ in range(22):
    trainer.training_step(torch.randn(6, 10, device=device), torch.randn(6, 10, device=device))
