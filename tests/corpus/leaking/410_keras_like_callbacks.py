import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Callback:
    def on_epoch_begin(self, epoch):
        pass

    def on_batch_end(self, batch, logs):
        pass


class HistoryCallback(Callback):
    def __init__(self):
        self.batch_logs = []

    def on_batch_end(self, batch, logs):
        self.batch_logs.append(logs)  # leak: holder=batch_logs kind=graph lint=accumulate


class PrintCallback(Callback):
    def on_batch_end(self, batch, logs):
        if batch % 10 == 0:
            print(f"batch {batch}: loss={logs['loss'].item():.4f}")


class Model:
    def __init__(self, network):
        self.network = network

    def compile(self, optimizer, loss):
        self.optimizer, self.loss = optimizer, loss

    def fit(self, x, y, epochs=1, batch_size=8, callbacks=()):
        for epoch in range(epochs):
            for callback in callbacks:
                callback.on_epoch_begin(epoch)
            for b in range(len(x) // batch_size):
                rows = slice(b * batch_size, (b + 1) * batch_size)
                loss = self.loss(self.network(x[rows]), y[rows])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                logs = {"loss": loss, "size": batch_size}
                for callback in callbacks:
                    callback.on_batch_end(b, logs)  # also:


net = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 1)).to(device)
model = Model(net)
model.compile(torch.optim.Adam(net.parameters()), nn.MSELoss())
x = torch.randn(96, 5, device=device)
model.fit(x, x.sum(1, keepdim=True), epochs=2, callbacks=[HistoryCallback(), PrintCallback()])
