from collections import defaultdict

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Logger:
    def __init__(self, console=print):
        self.console = console
        self.stats = defaultdict(list)

    def log_stat(self, key, value, t):
        self.stats[key].append((t, value))  # leak: holder=stats|logger kind=graph

    def print_recent_stats(self):
        for key in sorted(self.stats):
            window = 1 if key == "episode" else 5
            values = [float(x[1]) for x in self.stats[key][-window:]]
            self.console(f"{key:<16}{sum(values) / len(values):>10.4f}")


class QLearner:
    def __init__(self, n_agents, n_actions, obs_dim, logger):
        self.agent = nn.Sequential(nn.Linear(obs_dim, 24), nn.ReLU(), nn.Linear(24, n_actions)).to(device)
        self.mixer = nn.Linear(n_agents, 1).to(device)
        self.params = list(self.agent.parameters()) + list(self.mixer.parameters())
        self.optimiser = torch.optim.RMSprop(self.params, lr=5e-4)
        self.logger = logger

    def train(self, batch, t_env):
        chosen = self.agent(batch["obs"]).max(dim=-1).values
        q_tot = self.mixer(chosen)
        td_error = q_tot - batch["reward"]
        loss = (td_error**2).sum() / batch["obs"].size(0)
        self.optimiser.zero_grad()
        loss.backward()
        grad_norm = nn.utils.clip_grad_norm_(self.params, 10)
        self.optimiser.step()
        self.logger.log_stat("loss", loss, t_env)  # also: lint=accumulate
        self.logger.log_stat("grad_norm", grad_norm.item(), t_env)
        self.logger.log_stat("td_error_abs", td_error.abs().mean().item(), t_env)


logger = Logger()
learner = QLearner(3, 5, 8, logger)
for t in range(26):
    learner.train({"obs": torch.randn(16, 3, 8, device=device), "reward": torch.randn(16, 1, device=device)}, t)
    if t % 10 == 9:
        logger.print_recent_stats()
