"""A DDPM loop: schedules as buffers and host tensors, extract() with gather, sinusoidal time embedding, EMA and
sampling."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"
T = 20
betas = torch.linspace(1e-4, 0.02, T)
alphas_cumprod = torch.cumprod(1.0 - betas, axis=0)
sqrt_ac, sqrt_omac = torch.sqrt(alphas_cumprod), torch.sqrt(1.0 - alphas_cumprod)


def extract(a, t, x_shape):
    out = a.gather(-1, t.cpu())
    return out.reshape(t.shape[0], *((1,) * (len(x_shape) - 1))).to(t.device)


class TimeEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, time):
        device = time.device
        half = self.dim // 2
        emb = torch.exp(torch.arange(half, device=device) * -(math.log(10000) / (half - 1)))
        emb = time[:, None] * emb[None, :]
        return torch.cat((emb.sin(), emb.cos()), dim=-1)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(TimeEmbedding(16), nn.Linear(16, 16), nn.GELU())
        self.down = nn.Conv2d(1, 16, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(4, 16)
        self.attn = nn.MultiheadAttention(16, 2, batch_first=True)
        self.up = nn.Conv2d(17, 1, 3, padding=1)

    def forward(self, x, t):
        h = F.silu(self.norm(self.down(x)) + self.time(t)[:, :, None, None])
        tokens = h.flatten(2).transpose(1, 2)
        tokens = tokens + self.attn(tokens, tokens, tokens, need_weights=False)[0]
        h = tokens.transpose(1, 2).reshape(h.shape)
        return self.up(torch.cat([F.interpolate(h, scale_factor=2, mode="nearest"), x], 1))


model = UNet().to(device)
ema = {k: v.clone() for k, v in model.state_dict().items()}
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(3):
    x = torch.randn(4, 1, 8, 8).to(device)
    t = torch.randint(0, T, (4,), device=device).long()
    noise = torch.randn_like(x)
    noisy = extract(sqrt_ac, t, x.shape) * x + extract(sqrt_omac, t, x.shape) * noise
    optimizer.zero_grad()
    loss = F.smooth_l1_loss(noise, model(noisy, t))
    loss.backward()
    optimizer.step()
    for k, v in model.state_dict().items():
        ema[k].lerp_(v, 0.1)
    print(step, loss.item())


@torch.no_grad()
def p_sample_loop(shape):
    device = next(model.parameters()).device
    img = torch.randn(shape, device=device)
    for i in reversed(range(T - 4, T)):
        t = torch.full((shape[0],), i, device=device, dtype=torch.long)
        mean = (img - extract(betas, t, shape) * model(img, t) / extract(sqrt_omac, t, shape)) / torch.sqrt(
            1 - betas[i]
        )
        img = mean + torch.sqrt(betas[i]) * torch.randn_like(img)
    return img


model.load_state_dict(ema)
generator = torch.Generator(device=device).manual_seed(7)
latents = torch.randn((1, 4), generator=generator, device=device, dtype=torch.float32)
print(p_sample_loop((2, 1, 8, 8)).cpu().numpy().sum(), latents.tolist())
