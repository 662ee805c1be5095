"""The Transformers Trainer with a tiny random model. The script names no device; the Trainer finds CUDA."""

import os
import tempfile
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore")

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments, set_seed  # noqa: E402


class Tokens(torch.utils.data.Dataset):
    def __init__(self):
        self.data = torch.randint(0, 40, (16, 12), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return {"input_ids": self.data[i], "labels": self.data[i]}


set_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
)
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=2,
    learning_rate=1e-3, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, seed=0, max_grad_norm=1.0,
    use_cpu="cuda" == "cpu",
)  # fmt: skip
trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(), eval_dataset=Tokens())
trainer.remove_callback(PrinterCallback)
trainer.train()
print([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
print(trainer.evaluate()["eval_loss"], sum(p.sum().item() for p in model.parameters()))
print("memory:", model.device, torch.cuda.max_memory_allocated())
