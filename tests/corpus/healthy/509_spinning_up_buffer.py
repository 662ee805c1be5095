import numpy as np
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class ReplayBuffer:
    """A FIFO replay buffer of fixed size."""

    def __init__(self, obs_dim, act_dim, size):
        self.obs_buf = np.zeros((size, obs_dim), dtype=np.float32)
        self.act_buf = np.zeros((size, act_dim), dtype=np.float32)
        self.rew_buf = np.zeros(size, dtype=np.float32)
        self.ptr, self.size, self.max_size = 0, 0, size

    def store(self, obs, act, rew):
        self.obs_buf[self.ptr], self.act_buf[self.ptr], self.rew_buf[self.ptr] = obs, act, rew
        self.ptr = (self.ptr + 1) % self.max_size
        self.size = min(self.size + 1, self.max_size)

    def sample_batch(self, batch_size=8):
        idxs = np.random.randint(0, self.size, size=batch_size)
        batch = dict(obs=self.obs_buf[idxs], act=self.act_buf[idxs], rew=self.rew_buf[idxs])
        return {k: torch.as_tensor(v, device=device) for k, v in batch.items()}


q = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
pi = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1), nn.Tanh()).to(device)
q_optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
buffer = ReplayBuffer(4, 1, size=30)
for t in range(60):
    o = np.random.randn(4).astype(np.float32)
    with torch.no_grad():
        a = pi(torch.as_tensor(o, device=device)).cpu().numpy()
    buffer.store(o, a, float(np.random.rand()))
    batch = buffer.sample_batch()
    loss_q = (q(torch.cat([batch["obs"], batch["act"]], dim=1)).squeeze(1) - batch["rew"]).pow(2).mean()
    q_optimizer.zero_grad()
    loss_q.backward()
    q_optimizer.step()
