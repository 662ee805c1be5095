"""A handwritten trainer in the style of Lightning: module hooks, batch transfer, bf16, gradient accumulation and
clipping, a validation loop."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.save = {}
        self.backbone = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True), 2
        )
        self.embed = nn.Embedding(20, 16)
        self.head = nn.Linear(16, 20)
        self.register_buffer("position", torch.arange(10).unsqueeze(0), persistent=False)
        self.position_embed = nn.Embedding(10, 16)

    @property
    def device(self):
        return next(self.parameters()).device

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1), device=self.device)
        x = self.embed(tokens) + self.position_embed(self.position)
        return self.head(self.backbone(x, mask=mask, is_causal=True))

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self(batch["tokens"]).flatten(0, 1), batch["labels"].flatten())
        self.log("train_loss", loss)
        return {"loss": loss}

    @torch.inference_mode()
    def validation_step(self, batch):
        padding = batch["tokens"].eq(0)
        out = self.backbone(self.embed(batch["tokens"]), src_key_padding_mask=padding)
        return out.float().mean()

    def log(self, name, value):
        self.save.setdefault(name, []).append(value.detach())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-4)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)]


class Trainer:
    def __init__(self, accelerator="auto", precision="bf16-mixed", accumulate=2, clip=1.0):
        self.root = (
            torch.device("cuda", torch.cuda.current_device())
            if accelerator == "auto" and torch.cuda.is_available()
            else torch.device("cpu")
        )
        self.accumulate, self.clip = accumulate, clip
        self.precision = torch.autocast(self.root.type, dtype=torch.bfloat16) if "bf16" in precision else None

    def move(self, batch):
        return {k: v.to(self.root, non_blocking=True) if hasattr(v, "to") else v for k, v in batch.items()}

    def fit(self, module, train, valid):
        module.to(self.root)
        (optimizer,), (scheduler,) = module.configure_optimizers()
        for epoch in range(2):
            module.train()
            for index, batch in enumerate(train):
                with self.precision:
                    loss = module.training_step(self.move(batch), index)["loss"]
                (loss / self.accumulate).backward()
                if (index + 1) % self.accumulate == 0:
                    nn.utils.clip_grad_norm_(module.parameters(), self.clip, foreach=True)
                    optimizer.step()
                    optimizer.zero_grad()
                    scheduler.step()
            module.eval()
            with torch.no_grad():
                values = [module.validation_step(self.move(batch)) for batch in valid]
            print(
                epoch, torch.stack(module.save["train_loss"]).mean().item(), torch.stack(values).mean().item()
            )


torch.manual_seed(0)
batches = [
    {"tokens": torch.randint(0, 20, (4, 10)), "labels": torch.randint(0, 20, (4, 10)), "id": i}
    for i in range(4)
]
Trainer().fit(Module(), batches, batches[:2])
