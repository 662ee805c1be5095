import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def evaluate(model, eval_dataset):
    eval_dataloader = DataLoader(eval_dataset, sampler=SequentialSampler(eval_dataset), batch_size=4)
    eval_loss, nb_eval_steps = 0.0, 0
    preds, out_label_ids = None, None
    for batch in eval_dataloader:
        model.eval()
        batch = tuple(t.to(device) for t in batch)
        with torch.no_grad():
            logits = model(batch[0])
            eval_loss += nn.functional.cross_entropy(logits, batch[1]).mean().item()
        nb_eval_steps += 1
        if preds is None:
            preds = logits.detach().cpu().numpy()
            out_label_ids = batch[1].detach().cpu().numpy()
        else:
            preds = np.append(preds, logits.detach().cpu().numpy(), axis=0)
            out_label_ids = np.append(out_label_ids, batch[1].detach().cpu().numpy(), axis=0)
    return {"loss": eval_loss / nb_eval_steps, "acc": float((preds.argmax(1) == out_label_ids).mean())}


model = nn.Sequential(nn.EmbeddingBag(50, 16), nn.Linear(16, 3)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
for epoch in range(2):
    model.train()
    for _ in range(12):
        tokens, labels = torch.randint(0, 50, (4, 9), device=device), torch.randint(0, 3, (4,), device=device)
        loss = nn.functional.cross_entropy(model(tokens), labels)
        loss.backward()
        optimizer.step()
        model.zero_grad()
    print(evaluate(model, TensorDataset(torch.randint(0, 50, (64, 9)), torch.randint(0, 3, (64,)))))
