import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class GradCam:
    def __init__(self, model, layer):
        self.model, self.layer = model, layer

    def explain(self, image):
        kept = {"image": image}

        def forward_hook(module, inputs, output):
            kept["activation"] = output.detach()

        self.layer.register_forward_hook(forward_hook)  # leak: holder=_forward_hooks|kept|layer|model kind=tensor
        score = self.model(image).max()
        (gradient,) = torch.autograd.grad(score, image)
        return (gradient * kept["image"]).sum().item() + kept["activation"].mean().item()


model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 3)).to(device)
optimizer = torch.optim.Adam(model.parameters())
cam = GradCam(model, model[1])
for step in range(20):
    image = torch.rand(4, 20, device=device, requires_grad=True)
    loss = model(image).logsumexp(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    cam.explain(image.detach().requires_grad_())
