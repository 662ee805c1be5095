"""Text models from the transformers library: encoders, encoder-decoders, causal language models, parameter-efficient
fine-tuning."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.accuracy.cases.case import CaseSet
from bench.lib.models import parts
from bench.lib.models.blocks import TokenEmbedding
from bench.lib.models.layers import add_lora
from bench.lib.models.parts import (
    Spec,
    batch_of,
    causal_lm,
    freeze,
    huggingface,
    integers,
    masked_text_loss,
    padded_to_longest,
    source_and_target,
    transformer_sizes,
)

CASES = CaseSet()
case = CASES.case


# Encoders: classification, tagging, ranking.


@case("adamw", "amp_fp16", 9, clip=True)
def grades_of_essays() -> Spec:
    """Build BERT-base for regression."""
    model = huggingface().BertForSequenceClassification(huggingface().BertConfig(num_labels=1))

    def loss(model: nn.Module, ids: Tensor, mask: Tensor, grade: Tensor) -> Tensor:
        output = model(input_ids=ids, attention_mask=mask).logits.squeeze(1)
        return F.mse_loss(output.float(), grade.float())

    return Spec(model, padded_to_longest((180, 212, 164), 30522, 6), loss)


@case("adamw", "amp_bf16", 6, accumulate=2)
def five_endings() -> Spec:
    """Build RoBERTa-base for multiple choice with five options."""
    config = huggingface().RobertaConfig(vocab_size=50265, max_position_embeddings=514)
    return Spec(
        huggingface().RobertaForMultipleChoice(config),
        batch_of(integers(50265, 5, 72), integers(5)),
        parts.masked_loss,
    )


@case("adamw", "fp32", 10, clip=True)
def many_tongues_few_learn() -> Spec:
    """Build XLM-RoBERTa-base with frozen embeddings of 250,000 tokens."""
    config = huggingface().XLMRobertaConfig(vocab_size=250002, max_position_embeddings=514, num_labels=3)
    model = huggingface().XLMRobertaForSequenceClassification(config)
    freeze(model.roberta.embeddings)
    return Spec(model, padded_to_longest((96, 120, 84), 250002, 3), masked_text_loss)


@case("adam", "fp32", 12)
def convolved_tags() -> Spec:
    """Build ConvBERT for token classification. Half of the heads are dynamic convolutions."""
    model = huggingface().ConvBertForTokenClassification(
        huggingface().ConvBertConfig(**transformer_sizes(512, 8, num_labels=13))
    )
    return Spec(model, padded_to_longest((110, 96, 124), 30522, 13, per_token=True), masked_text_loss)


@case("adamw", "fp32", 26)
def phone_intents() -> Spec:
    """Build MobileBERT, which has bottleneck layers."""
    model = huggingface().MobileBertForSequenceClassification(
        huggingface().MobileBertConfig(num_hidden_layers=14, num_labels=77)
    )
    return Spec(model, padded_to_longest((64, 48, 70), 30522, 77), masked_text_loss)


@case("adamw_fused", "amp_bf16", 5, checkpoint=True)
def hidden_words_of_code() -> Spec:
    """Build a ModernBERT masked language model on code, with activation checkpointing."""
    config = huggingface().ModernBertConfig(
        vocab_size=32000, hidden_size=640, intermediate_size=960, num_hidden_layers=12, num_attention_heads=10,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    batch = padded_to_longest((640, 512), 32000, 32000, per_token=True)
    return Spec(huggingface().ModernBertForMaskedLM(config), batch, masked_text_loss)


@case("adamw", "amp_fp16", 5, evaluate=True)
def passages_in_order() -> Spec:
    """Build a cross-encoder that ranks eight passages per question."""
    model = huggingface().BertForSequenceClassification(
        huggingface().BertConfig(**transformer_sizes(384, 12, num_labels=1))
    )

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        pairs = ids.flatten(0, 1)
        output = model(input_ids=pairs, attention_mask=torch.ones_like(pairs)).logits.view(-1, 8)
        return F.cross_entropy(output.float(), ids.new_zeros(len(ids)))

    return Spec(model, batch_of(integers(30522, 8, 150)), loss)


# Encoder-decoder models.


@case("adamw", "amp_fp16", 3, accumulate=2, clip=True)
def minutes_of_meetings() -> Spec:
    """Build BART-base for summarization of long texts."""
    model = huggingface().BartForConditionalGeneration(
        huggingface().BartConfig(
            d_model=768, encoder_layers=6, decoder_layers=6, encoder_ffn_dim=3072, decoder_ffn_dim=3072,
            encoder_attention_heads=12, decoder_attention_heads=12, use_cache=False,
        )
    )  # fmt: skip
    return Spec(model, source_and_target(50265, ((512, 64), (440, 80))), masked_text_loss)


@case("adamw", "amp_bf16", 16)
def from_any_into_any() -> Spec:
    """Return a small M2M-100."""
    config = huggingface().M2M100Config(
        vocab_size=48000, d_model=512, encoder_layers=6, decoder_layers=6, encoder_ffn_dim=2048, decoder_ffn_dim=2048,
        encoder_attention_heads=8, decoder_attention_heads=8, encoder_layerdrop=0.0, decoder_layerdrop=0.0, use_cache=False,
    )  # fmt: skip
    batch = source_and_target(48000, ((56, 60), (72, 66), (48, 54)))
    return Spec(huggingface().M2M100ForConditionalGeneration(config), batch, masked_text_loss)


@case("adamw", "tf32", 10)
def bert_learns_to_write() -> Spec:
    """Return a small BERT encoder and a BERT decoder with cross-attention."""
    size = transformer_sizes(512, 5, vocab_size=24000)
    read, write = huggingface().BertConfig(**size), huggingface().BertConfig(**size, use_cache=False)
    config = huggingface().EncoderDecoderConfig.from_encoder_decoder_configs(read, write)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    batch = source_and_target(24000, ((200, 44), (168, 52)))
    return Spec(huggingface().EncoderDecoderModel(config=config), batch, masked_text_loss)


class _IA3(nn.Module):
    """A frozen linear layer with trainable scales for its outputs (IA3)."""

    def __init__(self, line: nn.Linear) -> None:
        super().__init__()
        self.line, self.scale = line, nn.Parameter(torch.ones(line.out_features))

    @property
    def weight(self) -> Tensor:
        return self.line.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.line(x) * self.scale
        return out


@case("adafactor", "bf16", 8)
def factors_for_t5() -> Spec:
    """Build a T5-base in which only scales of keys, values and MLPs are trained."""
    config = huggingface().T5Config(
        d_model=768, d_ff=3072, num_layers=8, num_heads=12, decoder_start_token_id=0, use_cache=False
    )
    model = huggingface().T5ForConditionalGeneration(config)
    add_lora(model, ("k", "v", "wi"), 1, lambda line, _: _IA3(line))
    return Spec(model, source_and_target(32128, ((256, 40), (220, 48))), masked_text_loss)


class _Seq2Seq(nn.Module):
    """`nn.Transformer` with padding masks."""

    def __init__(self, words: int, width: int, length: int) -> None:
        super().__init__()
        self.read, self.write = TokenEmbedding(words, width, length), TokenEmbedding(words, width, length)
        self.middle = nn.Transformer(
            width, 6, 4, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(width, words)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        ahead = nn.Transformer.generate_square_subsequent_mask(target.size(1), device=target.device)
        padded, unused = source == 0, target == 0
        output = self.middle(
            self.read(source), self.write(target), tgt_mask=ahead < 0, tgt_is_causal=True,
            src_key_padding_mask=padded, tgt_key_padding_mask=unused, memory_key_padding_mask=padded,
        )  # fmt: skip
        out: Tensor = self.head(output)
        return out


@case("adam", "fp32", 40, clip=True)
def addresses_taken_apart() -> Spec:
    def loss(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
        output = model(source, target[:, :-1]).flatten(0, 1)
        return F.cross_entropy(output, target[:, 1:].flatten(), ignore_index=0, label_smoothing=0.1)

    return Spec(_Seq2Seq(9000, 384, 72), batch_of(integers(9000, 64), integers(9000, 49)), loss)


# Causal language models.


def _gpt2(length: int, **sizes: int) -> Spec:
    model = huggingface().GPT2LMHeadModel(huggingface().GPT2Config(use_cache=False, **sizes))
    return Spec(model, parts.tokens(model.config.vocab_size, length), parts.language_model_loss)


@case("adamw", "fp32", 3, keep_grads=True)
def jokes() -> Spec:
    """Build GPT-2 on 256 tokens with batch size 3."""
    return _gpt2(256)


@case("adamw", "amp_fp16", 10, accumulate=2, clip=True)
def short_messages() -> Spec:
    """Build GPT-2 with six layers."""
    return _gpt2(128, n_layer=6)


@case("adamw", "amp_bf16", 6, evaluate=True)
def only_biases_learn() -> Spec:
    """Build a GPT-2 in which only biases and norms are trained (BitFit)."""
    spec = _gpt2(224)
    for name, parameter in spec.model.named_parameters():
        parameter.requires_grad_(name.endswith("bias") or ".ln_" in name)
    return spec


@case("adamw", "amp_bf16", 5, clip=True)
def commit_messages() -> Spec:
    """Build GPT-Neo, in which every second layer attends only to the last 128 tokens."""
    sizes = {"hidden_size": 768, "num_layers": 6, "num_heads": 12, "window_size": 128}
    return causal_lm("GPTNeo", 448, **sizes, vocab_size=32000, attention_types=[[["global", "local"], 3]])


@case("adamw_fused", "bf16", 6, accumulate=3)
def norms_without_weights() -> Spec:
    """Build OLMo in bfloat16."""
    return causal_lm(
        "Olmo", 448, **transformer_sizes(640, 9, vocab_size=28000, intermediate_size=1792, pad_token_id=1)
    )


@case("adafactor", "bf16", 1, checkpoint=True, accumulate=2)
def long_reports() -> Spec:
    """Build a fully trained Qwen2 on 2,048 tokens, with activation checkpointing."""
    sizes = transformer_sizes(768, 10, vocab_size=56000, intermediate_size=2560, num_key_value_heads=2)
    return causal_lm("Qwen2", 2048, **sizes, tie_word_embeddings=True)


@case("adamw", "amp_fp16", 5)
def new_words_for_an_old_model() -> Spec:
    """Build an OPT-125M in which only the embeddings are trained."""
    spec = causal_lm("OPT", 340, vocab_size=40000)
    freeze(spec.model)
    spec.model.get_input_embeddings().requires_grad_(True)
    return spec


class _LoRAFloat32(nn.Module):
    """A frozen bfloat16 linear layer with a float32 low-rank update, as in PEFT."""

    def __init__(self, line: nn.Linear, rank: int) -> None:
        super().__init__()
        self.line, self.drop = line, nn.Dropout(0.05)
        self.down = nn.Linear(line.in_features, rank, bias=False)
        self.up = nn.Linear(rank, line.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.line(x)
        update = self.up(self.down(self.drop(x.to(self.down.weight.dtype))))
        return y + (update * 2).to(y.dtype)


class _DoRA(nn.Module):
    """A weight-decomposed low-rank update (DoRA)."""

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
    """Build five wide Llama layers in bfloat16 with float32 LoRA on all linear layers."""
    sizes = transformer_sizes(2048, 5, vocab_size=48000, intermediate_size=8192, num_key_value_heads=8)
    spec = causal_lm("Llama", 512, **sizes, tie_word_embeddings=True)
    spec.model.to(torch.bfloat16)
    lines = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    add_lora(spec.model, lines, 16, _LoRAFloat32)
    spec.model.enable_input_require_grads()
    return spec


@case("adamw", "bf16", 4)
def direction_and_length() -> Spec:
    sizes = transformer_sizes(1024, 8, vocab_size=32000, intermediate_size=2816, num_key_value_heads=4)
    spec = causal_lm("Mistral", 420, **sizes)
    add_lora(spec.model, ("q_proj", "v_proj", "down_proj"), 8, _DoRA)
    return spec
