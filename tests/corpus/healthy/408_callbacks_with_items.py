import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Recorder:
    def __init__(self):
        self.batch_logs, self.epoch_logs = [], []

    def on_batch_end(self, logs):
        self.batch_logs.append({key: value.item() for key, value in logs.items()})

    def on_epoch_end(self):
        self.epoch_logs.append(sum(log["loss"] for log in self.batch_logs) / len(self.batch_logs))
        self.batch_logs.clear()


net = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 1)).to(device)
optimizer = torch.optim.Adam(net.parameters())
recorder = Recorder()
for epoch in range(4):
    for _ in range(8):
        x = torch.randn(8, 5, device=device)
        prediction = net(x)
        loss = nn.functional.mse_loss(prediction, x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.on_batch_end({"loss": loss, "prediction_mean": prediction.mean()})
    recorder.on_epoch_end()
print(recorder.epoch_logs)
