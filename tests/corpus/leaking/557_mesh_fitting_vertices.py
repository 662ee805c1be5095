import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

template = torch.randn(30, 3, device=device)
blend_shapes = torch.randn(30, 3, 5, device=device) * 0.1
target = template + blend_shapes @ torch.tensor([0.5, -0.3, 0.8, 0.1, 0.0], device=device)

betas = torch.zeros(5, device=device, requires_grad=True)
translation = torch.zeros(3, device=device, requires_grad=True)
optimizer = torch.optim.Adam([betas, translation], lr=0.05)
animation = []
for i in range(28):
    verts = template + blend_shapes @ betas + translation
    loss = (verts - target).norm(dim=1).mean() + 0.01 * betas.pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    animation.append(verts)  # leak: holder=animation kind=graph lint=accumulate
    if i % 10 == 0:
        print("iteration %02d, loss %.5f" % (i, loss.item()))
print(len(animation), "frames")
