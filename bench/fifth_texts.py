"""Networks of transformers' that read and write. Cases stand above the model they train."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import model_parts as parts
from bench.case import CaseSet
from bench.layer_parts import lowered
from bench.model_parts import Spec, causal, hub, kinds, made, masked_text_loss, sized

FIFTH_TEXTS = CaseSet()
case = FIFTH_TEXTS.case


# Read.


@case("adamw", "amp_bf16", 18, clip=True, evaluate=True)
def film_plots() -> Spec:
    """RoBERTa's base size, three lengths of batch."""
    config = hub().RobertaConfig(vocab_size=50265, max_position_embeddings=514, num_labels=27)
    return Spec(
        hub().RobertaForSequenceClassification(config),
        parts.padded_to_longest((210, 176, 240), 50265, 27),
        masked_text_loss,
    )


@case("adamw", "fp32", 20)
def half_frozen_bert() -> Spec:
    """BERT whose words and first eight layers stay."""
    model = hub().BertForSequenceClassification(hub().BertConfig(num_labels=3))
    for part in (model.bert.embeddings, *model.bert.encoder.layer[:8]):
        parts.freeze(part)
    return Spec(model, parts.padded_to_longest((120, 144, 101), 30522, 3), masked_text_loss)


@case("adamw", "amp_fp16", 8, accumulate=2, clip=True)
def large_bert_reads() -> Spec:
    """Sixteen layers of width 1,024, small batches."""
    config = hub().BertConfig(**sized(1024, 16, num_labels=2))
    return Spec(
        hub().BertForSequenceClassification(config),
        parts.padded_to_longest((128, 96), 30522, 2),
        masked_text_loss,
    )


@case("adamw", "amp_bf16", 12)
def distance_of_words() -> Spec:
    """DeBERTa's third form: what words say and where they stand, apart; pairs entail or not."""
    config = hub().DebertaV2Config(
        **sized(384, 8, vocab_size=40000, num_labels=3), relative_attention=True, position_buckets=128, norm_rel_ebd="layer_norm",
        share_att_key=True, pos_att_type=["p2c", "c2p"], max_relative_positions=-1, position_biased_input=False, type_vocab_size=0,
    )  # fmt: skip
    return Spec(
        hub().DebertaV2ForSequenceClassification(config),
        parts.padded_to_longest((128, 150), 40000, 3),
        lambda m, ids, mask, y: F.cross_entropy(m(input_ids=ids, attention_mask=mask).logits, y),
    )


@case("adamw", "fp32", 16)
def frequencies_for_words() -> Spec:
    """FNet: a Fourier transform in place of attention."""
    config = hub().FNetConfig(
        vocab_size=32000, hidden_size=512, num_hidden_layers=8, intermediate_size=2048, num_labels=5
    )  # fmt: skip
    return Spec(
        hub().FNetForSequenceClassification(config),
        made(kinds(32000, 256), kinds(5)),
        lambda m, ids, y: m(input_ids=ids, labels=y).loss,
    )


@case("nadam", "tf32", 24)
def turned_tags() -> Spec:
    """RoFormer: places told by turning, a tag for every word."""
    config = hub().RoFormerConfig(
        **sized(512, 6, vocab_size=50000, num_labels=19), max_position_embeddings=512
    )
    return Spec(
        hub().RoFormerForTokenClassification(config),
        parts.padded_to_longest((100, 88, 117), 50000, 19, per_token=True),
        masked_text_loss,
    )


@case("adamw", "amp_fp16", 16)
def replaced_words() -> Spec:
    """ELECTRA from the beginning: which words were put in by somebody else."""
    config = hub().ElectraConfig(**sized(512, 8, embedding_size=128))

    def loss(model: nn.Module, ids: Tensor, replaced: Tensor) -> Tensor:
        told = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        return F.binary_cross_entropy_with_logits(told, replaced)

    return Spec(hub().ElectraForPreTraining(config), made(kinds(30522, 256), parts.bits(256)), loss)


@case("adamw", "fp32", 8)
def which_of_four() -> Spec:
    """A question with four answers; DistilBERT reads every pair."""
    model = hub().DistilBertForMultipleChoice(hub().DistilBertConfig())

    return Spec(model, made(kinds(30522, 4, 90), kinds(4)), parts.masked_loss)


class _Narrowed(nn.Module):
    """Queries and passages by one small BERT; every word of a query finds its best in the passage (ColBERT)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = hub().BertModel(hub().BertConfig(**sized(512, 6)), add_pooling_layer=False)
        self.narrow = nn.Linear(512, 96, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        told = self.narrow(self.body(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state)
        return F.normalize(told.float(), dim=2)


@case("adamw", "amp_bf16", 24)
def best_words_meet() -> Spec:
    def loss(model: nn.Module, query: Tensor, passage: Tensor) -> Tensor:
        near = torch.einsum("aqw,bpw->abqp", model(query), model(passage)).amax(3).sum(2)
        return F.cross_entropy(near, torch.arange(len(near), device=near.device))

    return Spec(_Narrowed(), made(kinds(30522, 32), kinds(30522, 180)), loss)


# Written.


@case("adamw", "amp_bf16", 4, accumulate=2, clip=True)
def second_gpt_learns() -> Spec:
    """GPT-2 in blocks of 512."""
    model = hub().GPT2LMHeadModel(hub().GPT2Config(use_cache=False))
    return Spec(model, parts.tokens(50257, 512), parts.language_model_loss)


@case("adafactor", "bf16", 2, checkpoint=True)
def medium_gpt_in_half() -> Spec:
    config = hub().GPT2Config(n_embd=1024, n_layer=24, n_head=16, use_cache=False)
    return Spec(hub().GPT2LMHeadModel(config), parts.tokens(50257, 768), parts.language_model_loss)


def _sizes(words: int, width: int, layers: int, *, heads: int, few: int, inner: int) -> dict[str, int]:
    """What Llama and all who follow it call their sizes; a few heads are for keys."""
    return {
        "vocab_size": words, "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": few,
    }  # fmt: skip


@case("adamw_fused", "amp_bf16", 8, clip=True, keep_grads=True)
def sixty_million() -> Spec:
    return causal("Llama", 640, **_sizes(32000, 512, 8, heads=8, few=8, inner=1376))


@case("adamw", "bf16", 2, checkpoint=True, accumulate=4)
def wide_llama_adapted() -> Spec:
    """Low paths beside all lines of attention, sixteen wide layers computed again."""
    spec = causal("Llama", 1024, **_sizes(48000, 1536, 16, heads=24, few=8, inner=4096))
    lowered(spec.model, ("q_proj", "k_proj", "v_proj", "o_proj"), 16)
    spec.model.enable_input_require_grads()
    return spec


@case("adamw", "bf16", 4, clip=True)
def answers_of_their_own_length() -> Spec:
    """Padded dialogues of several lengths; low paths beside the perceptrons."""
    model = causal("Llama", 512, **_sizes(32000, 896, 12, heads=14, few=2, inner=2432)).model
    lowered(model, ("gate_proj", "up_proj", "down_proj"), 8)
    return Spec(
        model, parts.padded_to_longest((512, 384, 460), 32000, 32000, per_token=True), masked_text_loss
    )


@case("adamw", "fp32", 4)
def granite_from_scratch() -> Spec:
    """Granite, with its factors for attention, words and shortcuts."""
    return causal("Granite", 512, **_sizes(24000, 512, 10, heads=8, few=4, inner=1536))


@case("lion", "amp_bf16", 6)
def falcon_in_small() -> Spec:
    """One head for all keys, attention and perceptron side by side."""
    form = {"multi_query": True, "parallel_attn": True, "bias": False, "alibi": False}
    return causal(
        "Falcon", 448, vocab_size=32000, hidden_size=640, num_hidden_layers=8, num_attention_heads=10, **form
    )


@case("adamw", "amp_fp16", 6)
def stable_and_partly_turned() -> Spec:
    return causal("StableLm", 512, **_sizes(36000, 512, 10, heads=8, few=8, inner=1408))


@case("adamw_fused", "bf16", 4, accumulate=2)
def small_smol() -> Spec:
    """SmolLM's third form: every fourth layer without places."""
    marks = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    sizes = _sizes(49152, 768, 12, heads=12, few=4, inner=2304)
    return causal("SmolLM3", 640, **sizes, **marks, tie_word_embeddings=True)


class _Judged(nn.Module):
    """A frozen Qwen under a head of two lines: how good is an answer, from its last word."""

    def __init__(self) -> None:
        super().__init__()
        self.body = causal("Qwen2", 320, **_sizes(40000, 896, 10, heads=14, few=2, inner=2432)).model.model
        parts.freeze(self.body)
        self.head = nn.Sequential(nn.Linear(896, 896), nn.ReLU(), nn.Linear(896, 1))

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(input_ids=ids).last_hidden_state[:, -1]).squeeze(1)
        return out


@case("adam", "bf16", 16)
def marks_for_answers() -> Spec:
    return Spec(_Judged(), made(kinds(40000, 320), parts.numbers()), lambda m, ids, y: F.mse_loss(m(ids), y))


@case("adafactor", "fp32", 16, clip=True)
def questions_from_texts() -> Spec:
    """T5's first form, its small size."""
    config = hub().T5Config(decoder_start_token_id=0, use_cache=False)
    return Spec(
        hub().T5ForConditionalGeneration(config),
        parts.written_for_texts(32128, ((192, 32), (160, 40), (224, 28))),
        masked_text_loss,
    )


@case("adamw", "amp_bf16", 8, checkpoint=True)
def gated_t5() -> Spec:
    """Gates in the perceptrons, layers computed again."""
    config = hub().T5Config(
        vocab_size=32128, d_model=768, d_ff=2048, d_kv=64, num_layers=10, num_heads=12, feed_forward_proj="gated-gelu",
        tie_word_embeddings=False, decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip
    return Spec(
        hub().T5ForConditionalGeneration(config),
        parts.written_for_texts(32128, ((320, 96), (288, 80))),
        masked_text_loss,
    )


@case("adamw", "amp_fp16", 24)
def small_talk() -> Spec:
    """Blenderbot's small form."""
    config = hub().BlenderbotSmallConfig(
        vocab_size=54944, d_model=512, encoder_layers=6, decoder_layers=6, encoder_ffn_dim=2048, decoder_ffn_dim=2048, encoder_attention_heads=16,
        decoder_attention_heads=16, use_cache=False, decoder_start_token_id=1,
    )  # fmt: skip
    return Spec(
        hub().BlenderbotSmallForConditionalGeneration(config),
        parts.written_for_texts(54944, ((72, 40), (56, 32), (80, 36))),
        masked_text_loss,
    )
