import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class TrainerState:
    def __init__(self):
        self.global_step, self.log_history = 0, []


class Trainer:
    def __init__(self, model):
        self.model, self.state = model, TrainerState()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def log(self, logs):
        self.state.log_history.append({**logs, "step": self.state.global_step})  # leak: holder=log_history kind=graph

    def training_step(self, inputs):
        loss = self.model(inputs).logsumexp(-1).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.state.global_step += 1
        self.log({"loss": loss, "lr": self.optimizer.param_groups[0]["lr"]})  # also: lint=accumulate


trainer = Trainer(nn.Linear(9, 5).to(device))
for _ in range(22):
    trainer.training_step(torch.randn(6, 9, device=device))
