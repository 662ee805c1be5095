import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class SmallCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU())
        self.classifier = nn.Linear(6, 4)

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


class GradCAM:
    def __init__(self, model, target_layer):
        self.model = model
        self.activations, self.gradients = [], []
        target_layer.register_forward_hook(self.save_activation)  # also:

    def save_activation(self, module, inputs, output):
        self.activations.append(output.cpu().detach())  # leak: holder=activations|gradients|_forward_hooks|cam|features|model kind=tensor
        output.register_hook(lambda grad: self.gradients.append(grad.cpu().detach()))  # also:

    def __call__(self, image):
        self.activations, self.gradients = [], []
        logits = self.model(image)
        self.model.zero_grad()
        logits[0, logits.argmax()].backward()
        weights = self.gradients[0].mean(dim=(2, 3), keepdim=True)
        return F.relu((weights * self.activations[0]).sum(dim=1)).numpy()


model = SmallCNN().to(device).eval()
heat = []
for i in range(16):
    picture = torch.rand(1, 3, 12, 12, device=device)
    cam = GradCAM(model, model.features[2])  # also:
    heat.append(float(cam(picture).max()))
print(heat[:3])
