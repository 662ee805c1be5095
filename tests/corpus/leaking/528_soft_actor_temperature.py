import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class SAC:
    def __init__(self, obs_dim=3, act_dim=1, target_entropy=-1.0):
        self.actor = nn.Linear(obs_dim, 2 * act_dim).to(device)
        self.critic = nn.Sequential(nn.Linear(obs_dim + act_dim, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
        self.log_alpha = torch.zeros(1, requires_grad=True, device=device)
        self.actor_optim = torch.optim.Adam(self.actor.parameters(), lr=3e-4)
        self.alpha_optim = torch.optim.Adam([self.log_alpha], lr=3e-4)
        self.target_entropy = target_entropy
        self.logs = {"actor_loss": [], "alpha": []}

    def update_parameters(self, obs):
        mean, log_std = self.actor(obs).chunk(2, dim=-1)
        dist = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        action = dist.rsample()
        log_prob = dist.log_prob(action).sum(-1)
        alpha = self.log_alpha.exp()
        actor_loss = (alpha.detach() * log_prob - self.critic(torch.cat([obs, action], -1)).squeeze(-1)).mean()
        self.actor_optim.zero_grad()
        actor_loss.backward()
        self.actor_optim.step()
        alpha_loss = -(self.log_alpha * (log_prob + self.target_entropy).detach()).mean()
        self.alpha_optim.zero_grad()
        alpha_loss.backward()
        self.alpha_optim.step()
        self.logs["actor_loss"].append(actor_loss.item())
        self.logs["alpha"].append(alpha)  # leak: holder=logs kind=graph lint=accumulate


agent = SAC()
for _ in range(25):
    agent.update_parameters(torch.randn(12, 3, device=device))
print(agent.logs["alpha"][-1].item())
