# %%
import torch
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
g = torch.Generator().manual_seed(1)
C = torch.randn((27, 8), generator=g).to(device).requires_grad_()
W1 = torch.randn((24, 32), generator=g).to(device).requires_grad_()
W2 = torch.randn((32, 27), generator=g).to(device).requires_grad_()
parameters = [C, W1, W2]
lossi = []
stepi = []
# %%
for k in range(20):
    ix = torch.randint(0, 27, (16, 3), generator=g).to(device)
    emb = C[ix]
    h = torch.tanh(emb.view(16, -1) @ W1)
    logits = h @ W2
    loss = F.cross_entropy(logits, ix[:, 0])
    for p in parameters:
        p.grad = None
    loss.backward()
    for p in parameters:
        p.data += -0.05 * p.grad
    stepi.append(k)
    lossi.append(loss.log10())  # leak: holder=lossi kind=graph lint=accumulate
