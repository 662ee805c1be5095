"""A handwritten graph network: index_add_, scatter_add, scatter_reduce, edge softmax, a sparse adjacency matrix,
pooling."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(11)
device = torch.device("cuda")
nodes, edges, feats = 20, 60, 8
x = torch.randn(nodes, feats).to(device)
edge_index = torch.randint(0, nodes, (2, edges)).to(device)
y = torch.randint(0, 3, (nodes,), device=device)
train_mask = torch.zeros(nodes, dtype=torch.bool)
train_mask[:12] = True
train_mask = train_mask.to(device)


class GCNConv(nn.Module):
    def __init__(self, inp, out):
        super().__init__()
        self.lin = nn.Linear(inp, out, bias=False)
        self.bias = nn.Parameter(torch.zeros(out))

    def forward(self, x, edge_index):
        row, col = edge_index
        deg = torch.zeros(x.size(0), device=x.device).scatter_add_(
            0, col, torch.ones_like(col, dtype=x.dtype)
        )
        norm = deg.clamp(min=1).pow(-0.5)
        h = self.lin(x)
        out = torch.zeros_like(h)
        out.index_add_(0, col, h[row] * (norm[row] * norm[col]).unsqueeze(-1))
        return out + self.bias


class GATConv(nn.Module):
    def __init__(self, inp, out):
        super().__init__()
        self.lin, self.att = nn.Linear(inp, out), nn.Linear(2 * out, 1)

    def forward(self, x, edge_index):
        row, col = edge_index
        h = self.lin(x)
        e = F.leaky_relu(self.att(torch.cat([h[row], h[col]], -1))).squeeze(-1)
        top = e.new_full((x.size(0),), -1e9).scatter_reduce(0, col, e.detach(), reduce="amax")
        e = (e - top[col]).exp()
        total = e.new_zeros(x.size(0)).index_add(0, col, e)
        return torch.zeros_like(h).index_add(0, col, (e / (total[col] + 1e-9)).unsqueeze(-1) * h[row])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = GCNConv(feats, 16), GATConv(16, 3)

    def forward(self, x, edge_index):
        return F.log_softmax(
            self.conv2(F.dropout(F.elu(self.conv1(x, edge_index)), training=self.training), edge_index), 1
        )


model = Net().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for epoch in range(3):
    model.train()
    optimizer.zero_grad()
    out = model(x, edge_index)
    loss = F.nll_loss(out[train_mask], y[train_mask])
    loss.backward()
    optimizer.step()
    model.eval()
    correct = int((model(x, edge_index).argmax(1)[~train_mask] == y[~train_mask]).sum())
    print(epoch, loss.item(), correct)

adjacency = torch.sparse_coo_tensor(edge_index, torch.ones(edges, device=device), (nodes, nodes)).coalesce()
weight = torch.randn(feats, 4, device=device, requires_grad=True)
hidden = torch.sparse.mm(adjacency, x @ weight)
hidden.sum().backward()
print(
    hidden.sum().item(),
    weight.grad.norm().item(),
    adjacency.values().sum().item(),
    adjacency.device == x.device,
)
batch = torch.arange(nodes, device=device) // 5
pooled = torch.zeros(4, feats, device=device).index_add_(0, batch, x) / torch.bincount(batch).unsqueeze(1)
print(pooled.sum().item(), adjacency.to_dense().sum().item(), torch.unique(edge_index).numel())
row, order = torch.sort(edge_index[0])
csr = torch.sparse_coo_tensor(edge_index, torch.ones(edges, device=device), (nodes, nodes)).to_sparse_csr()
print((csr @ x).sum().item(), row.tolist() == sorted(edge_index[0].cpu().tolist()), order.numel())
