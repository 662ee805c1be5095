import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class DPO:
    def __init__(self, policy, reference, beta=0.1):
        self.policy, self.reference, self.beta = policy, reference, beta
        self.optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
        self.reference_cache = {}

    def reference_log_probs(self, identity, x):
        if identity not in self.reference_cache:
            self.reference_cache[identity] = self.reference(x).log_softmax(-1)  # leak: holder=reference_cache kind=graph lint=accumulate
        return self.reference_cache[identity]

    def step(self, identity, x):
        ours, theirs = self.policy(x).log_softmax(-1), self.reference_log_probs(identity, x).detach()
        loss = -nn.functional.logsigmoid(self.beta * (ours - theirs)[:, 0]).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


dpo = DPO(nn.Linear(8, 5).to(device), nn.Linear(8, 5).to(device))
for index in range(48):  # a stream: no sample comes twice
    dpo.step(f"sample-{index}", torch.randn(4, 8, device=device))
