import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class PolicyLM(nn.Module):
    def __init__(self, vocab=20, width=12):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(vocab, width), nn.GRU(width, width, batch_first=True), nn.Linear(width, vocab)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


def logprobs(model, ids):
    return F.log_softmax(model(ids[:, :-1]), dim=-1).gather(2, ids[:, 1:, None]).squeeze(2)


class PPOTrainer:
    def __init__(self, policy, reference, kl_coef=0.1):
        self.policy, self.reference, self.kl_coef = policy, reference, kl_coef
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)

    def step(self, ids, rewards):
        new = logprobs(self.policy, ids)
        with torch.no_grad():
            ref = logprobs(self.reference, ids)
        kl = (new - ref).sum(1).mean()
        policy_loss = -(rewards * new.sum(1)).mean()
        total = policy_loss + self.kl_coef * kl
        self.optimizer.zero_grad()
        total.backward()
        self.optimizer.step()
        return {"objective/kl": kl, "ppo/loss/policy": policy_loss, "ppo/mean_rewards": rewards.mean().item()}


policy, reference = PolicyLM().to(device), PolicyLM().to(device).requires_grad_(False)
trainer = PPOTrainer(policy, reference)
all_stats = []
for batch in range(20):
    ids = torch.randint(0, 20, (4, 6), device=device)
    stats = trainer.step(ids, torch.rand(4, device=device))
    all_stats.append(stats)  # leak: holder=all_stats kind=graph lint=accumulate
print("mean reward", sum(s["ppo/mean_rewards"] for s in all_stats) / len(all_stats))
