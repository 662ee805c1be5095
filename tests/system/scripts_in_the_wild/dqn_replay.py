"""The DQN tutorial: a replay memory of device tensors, masks, soft target updates, and cpu()/cuda() calls of older
scripts."""

import math
import random
from collections import deque, namedtuple

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

torch.manual_seed(0)
random.seed(0)
device = torch.device(
    "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
)
Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)


class DQN(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1 = nn.Linear(4, 32)
        self.layer2 = nn.Linear(32, 2)

    def forward(self, x):
        return self.layer2(F.relu(self.layer1(x)))


policy_net, target_net = DQN().to(device), DQN().to(device)
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.AdamW(policy_net.parameters(), lr=1e-2, amsgrad=True)
memory = ReplayMemory(200)
steps_done = 0


def select_action(state):
    global steps_done
    eps = 0.05 + 0.85 * math.exp(-1.0 * steps_done / 20)
    steps_done += 1
    if random.random() > eps:
        with torch.no_grad():
            return policy_net(state).max(1).indices.view(1, 1)
    return torch.tensor([[random.randrange(2)]], device=device, dtype=torch.long)


def optimize_model():
    batch = Transition(*zip(*memory.sample(16)))
    non_final_mask = torch.tensor([s is not None for s in batch.next_state], device=device, dtype=torch.bool)
    non_final_next_states = torch.cat([s for s in batch.next_state if s is not None])
    state_action_values = policy_net(torch.cat(batch.state)).gather(1, torch.cat(batch.action))
    next_state_values = torch.zeros(16, device=device)
    with torch.no_grad():
        next_state_values[non_final_mask] = target_net(non_final_next_states).max(1).values
    expected = (next_state_values * 0.99) + torch.cat(batch.reward)
    loss = nn.SmoothL1Loss()(state_action_values, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()
    return loss.item()


for episode in range(6):
    state = torch.tensor([0.1 * episode, 0, 0, 0], dtype=torch.float32, device=device).unsqueeze(0)
    for t in range(10):
        action = select_action(state)
        observation = [math.sin(t + action.item()), math.cos(t), float(t), 1.0]
        reward = torch.tensor([float(action.item())], device=device)
        done = t == 9
        next_state = (
            None if done else torch.tensor(observation, dtype=torch.float32, device=device).unsqueeze(0)
        )
        memory.push(state, action, next_state, reward)
        state = next_state
        if len(memory) >= 16:
            loss = optimize_model()
            target, policy = target_net.state_dict(), policy_net.state_dict()
            for key in policy:
                target[key] = policy[key] * 0.005 + target[key] * 0.995
            target_net.load_state_dict(target)
    print(episode, loss if len(memory) >= 16 else None)

# REINFORCE: log-probabilities of a distribution on the device.
dist = torch.distributions.Categorical(logits=policy_net(torch.ones(3, 4, device=device)))
sampled = dist.sample()
loss = (
    -(dist.log_prob(sampled) * torch.tensor([1.0, 2.0, 3.0], device=device)).sum()
    - 0.01 * dist.entropy().mean()
)
loss.backward()
normal = torch.distributions.Normal(torch.zeros(3, device=device), torch.ones(3, device=device))
print(sampled.tolist(), loss.item(), normal.rsample().tolist(), normal.sample((2,)).sum().item())
