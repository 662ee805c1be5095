"""Neural style transfer: an image optimized with LBFGS and a closure, Gram matrices, modules that store their targets,
clamping under no_grad."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.set_default_device(device)
torch.manual_seed(0)


def gram_matrix(input):
    a, b, c, d = input.size()
    features = input.view(a * b, c * d)
    return torch.mm(features, features.t()).div(a * b * c * d)


class StyleLoss(nn.Module):
    def __init__(self, target):
        super().__init__()
        self.target = gram_matrix(target).detach()

    def forward(self, input):
        self.loss = F.mse_loss(gram_matrix(input), self.target)
        return input


class Normalization(nn.Module):
    def __init__(self, mean, std):
        super().__init__()
        self.mean = mean.detach().clone().view(-1, 1, 1)
        self.std = torch.tensor(std).view(-1, 1, 1)

    def forward(self, img):
        return (img - self.mean) / self.std


cnn = nn.Sequential(
    nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(inplace=False), nn.Conv2d(6, 6, 3, padding=1)
).eval()
style, content = torch.rand(1, 3, 12, 12), torch.rand(1, 3, 12, 12)
style_loss = StyleLoss(cnn(style).detach())
model = nn.Sequential(
    Normalization(torch.tensor([0.485, 0.456, 0.406]), [0.229, 0.224, 0.225]), cnn, style_loss
)
input_img = content.clone()
input_img.requires_grad_(True)
model.eval()
model.requires_grad_(False)
optimizer = optim.LBFGS([input_img], line_search_fn=None)
run = [0]
while run[0] <= 10:

    def closure():
        with torch.no_grad():
            input_img.clamp_(0, 1)
        optimizer.zero_grad()
        model(input_img)
        loss = style_loss.loss * 1000000
        loss.backward()
        run[0] += 1
        if run[0] % 5 == 0:
            print(run, loss.item())
        return loss

    optimizer.step(closure)
with torch.no_grad():
    input_img.clamp_(0, 1)
print(input_img.sum().item())
w = torch.zeros(3, requires_grad=True, device=device)
other = optim.LBFGS([w], line_search_fn="strong_wolfe", max_iter=10)


def quadratic():
    other.zero_grad()
    value = ((w - torch.arange(3.0, device=device)) ** 4).sum()
    value.backward()
    return value


print(other.step(quadratic).item(), w.tolist())
torch.set_default_device("cpu")
