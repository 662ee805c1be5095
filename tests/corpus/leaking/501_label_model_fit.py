import torch
import torch.nn as nn


class LabelModel(nn.Module):
    """Weak supervision: learns the accuracy of each labeling function."""

    def __init__(self, num_classes, num_lfs):
        super().__init__()
        self.accuracy = nn.Parameter(torch.zeros(num_lfs))
        self.class_balance = nn.Parameter(torch.zeros(num_classes))
        self.num_classes = num_classes

    def forward(self, votes):
        agree = torch.nn.functional.one_hot(votes, self.num_classes).float()
        scores = (agree * self.accuracy[None, :, None]).sum(dim=1)
        return -torch.logsumexp(scores + self.class_balance.log_softmax(0), dim=1).mean()

    def estimate(self, votes, epochs=3, batch_size=10, lr=0.01):
        optimizer = torch.optim.Adam(self.parameters(), lr=lr, weight_decay=1e-3)
        for epoch in range(epochs):
            running_loss = 0.0
            order = torch.randperm(len(votes))
            for i_batch in range(len(votes) // batch_size):
                batch = votes[order[i_batch * batch_size : (i_batch + 1) * batch_size]]
                optimizer.zero_grad()
                loss = self(batch)
                loss.backward()
                optimizer.step()
                running_loss += loss  # leak: holder=running_loss kind=graph lint=accumulate
            epoch_loss = running_loss / (len(votes) // batch_size)
            print("epoch %d: train loss %.4f" % (epoch, epoch_loss))


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
votes = torch.randint(0, 3, (250, 6), device=device)
LabelModel(3, 6).to(device).estimate(votes)
