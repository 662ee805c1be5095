"""One network reads, another writes what it read. Cases stand above the model they train."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.accuracy.cases.case import CaseSet
from bench.lib.models.blocks import Words
from bench.lib.models.layers import lowered
from bench.lib.models.parts import Spec, hub, kinds, made, masked_text_loss, sized, written_for_texts

SEVENTH_TRANSLATORS = CaseSet()
case = SEVENTH_TRANSLATORS.case


@case("adamw", "amp_fp16", 3, accumulate=2, clip=True)
def minutes_of_meetings() -> Spec:
    """BART's base size, long talks in, short texts out."""
    model = hub().BartForConditionalGeneration(
        hub().BartConfig(
            d_model=768, encoder_layers=6, decoder_layers=6, encoder_ffn_dim=3072, decoder_ffn_dim=3072,
            encoder_attention_heads=12, decoder_attention_heads=12, use_cache=False,
        )
    )  # fmt: skip
    return Spec(model, written_for_texts(50265, ((512, 64), (440, 80))), masked_text_loss)


@case("adamw", "amp_bf16", 16)
def from_any_into_any() -> Spec:
    """M2M-100 in small: sines for places, one set of words for both sides."""
    config = hub().M2M100Config(
        vocab_size=48000, d_model=512, encoder_layers=6, decoder_layers=6, encoder_ffn_dim=2048, decoder_ffn_dim=2048,
        encoder_attention_heads=8, decoder_attention_heads=8, encoder_layerdrop=0.0, decoder_layerdrop=0.0, use_cache=False,
    )  # fmt: skip
    batch = written_for_texts(48000, ((56, 60), (72, 66), (48, 54)))
    return Spec(hub().M2M100ForConditionalGeneration(config), batch, masked_text_loss)


@case("adamw", "tf32", 10)
def bert_learns_to_write() -> Spec:
    """A small BERT reads; another looks at it and writes."""
    size = sized(512, 5, vocab_size=24000)
    read, write = hub().BertConfig(**size), hub().BertConfig(**size, use_cache=False)
    config = hub().EncoderDecoderConfig.from_encoder_decoder_configs(read, write)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    batch = written_for_texts(24000, ((200, 44), (168, 52)))
    return Spec(hub().EncoderDecoderModel(config=config), batch, masked_text_loss)


class _Scaled(nn.Module):
    """A line that stays, and a factor that learns for each number it gives (IA3)."""

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
    """T5's base width; nothing learns but factors for keys, values and the insides of perceptrons."""
    config = hub().T5Config(
        d_model=768, d_ff=3072, num_layers=8, num_heads=12, decoder_start_token_id=0, use_cache=False
    )
    model = hub().T5ForConditionalGeneration(config)
    lowered(model, ("k", "v", "wi"), 1, lambda line, _: _Scaled(line))
    return Spec(model, written_for_texts(32128, ((256, 40), (220, 48))), masked_text_loss)


class _Both(nn.Module):
    """torch's own transformer between words and words; it is told which words are only padding."""

    def __init__(self, words: int, width: int, length: int) -> None:
        super().__init__()
        self.read, self.write = Words(words, width, length), Words(words, width, length)
        self.middle = nn.Transformer(
            width, 6, 4, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(width, words)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        ahead = nn.Transformer.generate_square_subsequent_mask(target.size(1), device=target.device)
        padded, unused = source == 0, target == 0
        told = self.middle(
            self.read(source), self.write(target), tgt_mask=ahead < 0, tgt_is_causal=True,
            src_key_padding_mask=padded, tgt_key_padding_mask=unused, memory_key_padding_mask=padded,
        )  # fmt: skip
        out: Tensor = self.head(told)
        return out


@case("adam", "fp32", 40, clip=True)
def addresses_taken_apart() -> Spec:
    def loss(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
        told = model(source, target[:, :-1]).flatten(0, 1)
        return F.cross_entropy(told, target[:, 1:].flatten(), ignore_index=0, label_smoothing=0.1)

    return Spec(_Both(9000, 384, 72), made(kinds(9000, 64), kinds(9000, 49)), loss)
