import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class TinyLM(nn.Module):
    def __init__(self, vocab=40, width=16):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 32, batch_first=True)
        self.lm_head = nn.Linear(width, vocab)

    def forward(self, input_ids, labels):
        logits = self.lm_head(self.block(self.wte(input_ids)))
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


model = TinyLM().to(device)
model.eval()
tokens = torch.randint(0, 40, (1, 200), device=device)
max_length, stride = 24, 6
nlls = []
for begin in range(0, tokens.size(1) - max_length, stride):
    input_ids = tokens[:, begin : begin + max_length]
    outputs = model(input_ids, labels=input_ids.clone())  # lint: no-grad
    neg_log_likelihood = outputs["loss"] * stride
    nlls.append(neg_log_likelihood)  # leak: holder=nlls kind=graph lint=accumulate
print("ppl", torch.exp(torch.stack(nlls).sum() / (len(nlls) * stride)).item())
