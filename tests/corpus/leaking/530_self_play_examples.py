import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class BoardNet(nn.Module):
    def __init__(self, cells=9):
        super().__init__()
        self.body = nn.Linear(cells, 24)
        self.policy, self.value = nn.Linear(24, cells), nn.Linear(24, 1)

    def forward(self, board):
        h = F.relu(self.body(board))
        return F.log_softmax(self.policy(h), dim=-1), torch.tanh(self.value(h))


class Coach:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.Adam(net.parameters())
        self.train_examples_history = []

    def execute_episode(self, moves=4):
        examples, board, player = [], torch.zeros(9, device=device), 1.0
        for _ in range(moves):
            log_pi, v = self.net(board * player)
            examples.append((board.clone(), log_pi, v))
            board[torch.multinomial(log_pi.exp(), 1)] = player
            player = -player
        return examples

    def learn(self, iterations):
        for _ in range(iterations):
            episode = self.execute_episode()
            self.train_examples_history.extend(episode)  # leak: holder=train_examples_history kind=graph lint=accumulate
            boards = torch.stack([b for b, _, _ in episode])
            log_pi, v = self.net(boards)
            loss = -log_pi.max(dim=-1).values.mean() + v.pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


Coach(BoardNet().to(device)).learn(22)
