"""Language models that begin or go on learning, wholly or in small parts. Cases stand above the model they train."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.accuracy.cases.case import CaseSet
from bench.lib.models import parts as parts
from bench.lib.models.layers import lowered
from bench.lib.models.parts import Spec, causal, freeze, hub, sized

SEVENTH_WRITERS = CaseSet()
case = SEVENTH_WRITERS.case


def _gpt2(length: int, **sizes: int) -> Spec:
    model = hub().GPT2LMHeadModel(hub().GPT2Config(use_cache=False, **sizes))
    return Spec(model, parts.tokens(model.config.vocab_size, length), parts.language_model_loss)


@case("adamw", "fp32", 3, keep_grads=True)
def jokes() -> Spec:
    """GPT-2 in blocks of 256, three at a time."""
    return _gpt2(256)


@case("adamw", "amp_fp16", 10, accumulate=2, clip=True)
def short_messages() -> Spec:
    """GPT-2 of half as many layers."""
    return _gpt2(128, n_layer=6)


@case("adamw", "amp_bf16", 6, evaluate=True)
def only_biases_learn() -> Spec:
    """GPT-2 of which nothing learns but biases and norms."""
    spec = _gpt2(224)
    for name, parameter in spec.model.named_parameters():
        parameter.requires_grad_(name.endswith("bias") or ".ln_" in name)
    return spec


@case("adamw", "amp_bf16", 5, clip=True)
def commit_messages() -> Spec:
    """GPT-Neo: every second layer sees only 128 words back."""
    sizes = {"hidden_size": 768, "num_layers": 6, "num_heads": 12, "window_size": 128}
    return causal("GPTNeo", 448, **sizes, vocab_size=32000, attention_types=[[["global", "local"], 3]])


@case("adamw_fused", "bf16", 6, accumulate=3)
def norms_without_weights() -> Spec:
    """OLMo's first form, all in bfloat16."""
    return causal("Olmo", 448, **sized(640, 9, vocab_size=28000, intermediate_size=1792, pad_token_id=1))


@case("adafactor", "bf16", 1, checkpoint=True, accumulate=2)
def long_reports() -> Spec:
    """Two thousand words at a time, the whole of a Qwen learns, layers are computed again."""
    sizes = sized(768, 10, vocab_size=56000, intermediate_size=2560, num_key_value_heads=2)
    return causal("Qwen2", 2048, **sizes, tie_word_embeddings=True)


@case("adamw", "amp_fp16", 5)
def new_words_for_an_old_model() -> Spec:
    """OPT's smallest size; its words learn, its layers stay."""
    spec = causal("OPT", 340, vocab_size=40000)
    freeze(spec.model)
    spec.model.get_input_embeddings().requires_grad_(True)
    return spec


class _Precise(nn.Module):
    """A line in bfloat16 that stays, and beside it a low path that learns in full precision (as PEFT keeps them)."""

    def __init__(self, line: nn.Linear, rank: int) -> None:
        super().__init__()
        self.line, self.drop = line, nn.Dropout(0.05)
        self.down = nn.Linear(line.in_features, rank, bias=False)
        self.up = nn.Linear(rank, line.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.line(x)
        aside = self.up(self.down(self.drop(x.to(self.down.weight.dtype))))
        return y + (aside * 2).to(y.dtype)


class _Turned(nn.Module):
    """A low path changes where a line's weights point; how long they are learns apart (DoRA)."""

    def __init__(self, line: nn.Linear, rank: int) -> None:
        super().__init__()
        self.line = line
        self.down = nn.Parameter(torch.randn(rank, line.in_features) * 0.02)
        self.up = nn.Parameter(torch.zeros(line.out_features, rank))
        self.long = nn.Parameter(line.weight.detach().norm(dim=1, keepdim=True))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.line.weight + self.up @ self.down
        return F.linear(x, self.long * weight / weight.norm(dim=1, keepdim=True).detach())


@case("adamw", "amp_bf16", 2, checkpoint=True, clip=True)
def paths_in_full_precision() -> Spec:
    """Five layers of a Llama of width 2,048 in bfloat16, low paths beside all lines in float32."""
    sizes = sized(2048, 5, vocab_size=48000, intermediate_size=8192, num_key_value_heads=8)
    spec = causal("Llama", 512, **sizes, tie_word_embeddings=True)
    spec.model.to(torch.bfloat16)
    lines = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    lowered(spec.model, lines, 16, _Precise)
    spec.model.enable_input_require_grads()
    return spec


@case("adamw", "bf16", 4)
def direction_and_length() -> Spec:
    sizes = sized(1024, 8, vocab_size=32000, intermediate_size=2816, num_key_value_heads=4)
    spec = causal("Mistral", 420, **sizes)
    lowered(spec.model, ("q_proj", "v_proj", "down_proj"), 8, _Turned)
    return spec
