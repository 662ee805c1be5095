"""Transformers without a Trainer: tiny GPT-2 and BERT models with random weights, and batches that are dicts of
tensors."""

import torch
from torch.optim import AdamW
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    get_linear_schedule_with_warmup,
)

torch.manual_seed(0)
device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
config = BertConfig(
    vocab_size=60,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
    num_labels=3,
)
model = BertForSequenceClassification(config).to(device)
optimizer = AdamW(model.parameters(), lr=5e-4)
scheduler = get_linear_schedule_with_warmup(optimizer, 1, 4)
for step in range(3):
    batch = {
        "input_ids": torch.randint(0, 60, (4, 10)),
        "attention_mask": torch.ones(4, 10, dtype=torch.long),
        "labels": torch.randint(0, 3, (4,)),
    }
    batch["attention_mask"][0, 6:] = 0
    batch = {k: v.to(device) for k, v in batch.items()}
    outputs = model(**batch)
    outputs.loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    print(step, outputs.loss.item(), outputs.logits.argmax(-1).tolist())

gpt = GPT2LMHeadModel(
    GPT2Config(vocab_size=60, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
).to(device)
gpt.gradient_checkpointing_enable()
gpt.train()
ids = torch.randint(1, 60, (2, 12), device=gpt.device)
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = gpt(input_ids=ids, labels=ids, use_cache=False).loss
loss.backward()
print(loss.item(), gpt.transformer.wte.weight.grad.norm().item())
gpt.eval()
gpt.gradient_checkpointing_disable()
with torch.inference_mode():
    out = gpt.generate(
        ids[:, :4],
        attention_mask=torch.ones(2, 4, dtype=torch.long, device=device),
        max_new_tokens=4,
        do_sample=False,
        pad_token_id=0,
    )
print(out.tolist())
