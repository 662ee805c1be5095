"""Networks of transformers' for texts, read or written, at sizes that people fine-tune. Cases stand above the model they train."""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.layer_parts import lowered
from bench.model_parts import (
    Spec,
    bits,
    causal,
    freeze,
    hub,
    kinds,
    language_model_loss,
    made,
    masked_text_loss,
    padded_to_longest,
    sized,
    tokens,
    written_for_texts,
)

FOURTH_TEXTS = CaseSet()
case = FOURTH_TEXTS.case

_LINES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


# Read.


@case("adamw", "amp_fp16", 32, evaluate=True)
def tickets() -> Spec:
    """BERT's base size sorts complaints."""
    model = hub().BertForSequenceClassification(hub().BertConfig(num_labels=18))
    return Spec(model, padded_to_longest((96, 73, 110), 30522, 18), masked_text_loss)


@case("adamw", "amp_bf16", 16)
def rude_words() -> Spec:
    """RoBERTa's base size, six labels that may hold together."""
    config = hub().RobertaConfig(
        vocab_size=50265, max_position_embeddings=514, num_labels=6, problem_type="multi_label_classification"
    )
    return Spec(
        hub().RobertaForSequenceClassification(config),
        made(kinds(50265, 192), bits(6)),
        lambda m, ids, y: m(input_ids=ids.clamp(min=2), attention_mask=torch.ones_like(ids), labels=y).loss,
    )


@case("adamw", "fp32", 12)
def spans() -> Spec:
    """DistilBERT tells where an answer stands in 320 words."""
    model = hub().DistilBertForQuestionAnswering(hub().DistilBertConfig())

    def loss(model: nn.Module, ids: Tensor, begin: Tensor, end: Tensor) -> Tensor:
        told = model(input_ids=ids, attention_mask=torch.ones_like(ids))
        return (F.cross_entropy(told.start_logits, begin) + F.cross_entropy(told.end_logits, end)) / 2

    return Spec(model, made(kinds(30522, 320), kinds(320), kinds(320)), loss)


@case("adamw", "amp_bf16", 32)
def words_of_law() -> Spec:
    """DistilBERT goes on guessing hidden words, in another field."""
    model = hub().DistilBertForMaskedLM(hub().DistilBertConfig())
    return Spec(model, padded_to_longest((128,), 30522, 30522, per_token=True), masked_text_loss)


class _Sentences(nn.Module):
    """Means of words, normed, as sentence encoders have them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = hub().BertModel(hub().BertConfig(**sized(384, 6)), add_pooling_layer=False)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        told = self.body(input_ids=ids, attention_mask=mask).last_hidden_state
        weight = mask.unsqueeze(2).to(told.dtype)
        return F.normalize((told * weight).sum(1) / weight.sum(1), dim=1)


@case("adamw", "amp_fp16", 48)
def question_answer_other() -> Spec:
    """A question, its answer and a hard wrong one; everybody else's answers are wrong too."""

    def used(length: int) -> Callable[[int], Tensor]:
        return lambda count: (
            torch.arange(length) < torch.randint(length // 3, length + 1, (count, 1))
        ).long()

    def loss(model: nn.Module, *texts: Tensor) -> Tensor:
        question, right, wrong = (model(ids, mask) for ids, mask in zip(texts[::2], texts[1::2], strict=True))
        near = question.float() @ torch.cat([right, wrong]).float().t() * 20
        return F.cross_entropy(near, torch.arange(len(near), device=near.device))

    parts = [part for length in (32, 128, 128) for part in (kinds(30522, length), used(length))]
    return Spec(_Sentences(), made(*parts), loss)


@case("adamw", "fp32", 16, clip=True)
def how_alike() -> Spec:
    """MPNet tells one number for two sentences."""
    model = hub().MPNetForSequenceClassification(hub().MPNetConfig(**sized(512, 8, num_labels=1)))
    return Spec(
        model,
        made(kinds(30000, 100), bits()),
        lambda m, ids, y: m(input_ids=ids + 2, attention_mask=torch.ones_like(ids), labels=y).loss,
    )


@case("adamw_loop", "amp_bf16", 24)
def french_names() -> Spec:
    config = hub().CamembertConfig(
        **sized(640, 8, vocab_size=32005, num_labels=7), max_position_embeddings=514
    )
    model = hub().CamembertForTokenClassification(config)
    return Spec(model, padded_to_longest((70, 92, 64), 32005, 7, per_token=True), masked_text_loss)


@case("adamw", "fp32", 16)
def one_layer_twelve_times() -> Spec:
    """ALBERT's base size over long comments."""
    config = hub().AlbertConfig(**sized(768, 12, num_labels=5))
    return Spec(
        hub().AlbertForSequenceClassification(config),
        padded_to_longest((224, 256, 199), 30000, 5),
        masked_text_loss,
    )


@case("adamw_fused", "amp_bf16", 4)
def whole_contracts() -> Spec:
    """ModernBERT marks clauses in 1,024 words."""
    config = hub().ModernBertConfig(
        vocab_size=50368, hidden_size=512, intermediate_size=768, num_hidden_layers=10, num_attention_heads=8, num_labels=21,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    model = hub().ModernBertForTokenClassification(config)
    return Spec(model, padded_to_longest((1024, 896), 50280, 21, per_token=True), masked_text_loss)


@case("adamw", "amp_fp16", 12)
def proteins() -> Spec:
    """ESM guesses hidden amino acids."""
    config = hub().EsmConfig(
        vocab_size=33, hidden_size=480, num_hidden_layers=8, num_attention_heads=20, intermediate_size=1920, pad_token_id=1,
        mask_token_id=32, position_embedding_type="rotary", max_position_embeddings=1026, token_dropout=False,
    )  # fmt: skip
    return Spec(
        hub().EsmForMaskedLM(config),
        padded_to_longest((256, 310, 288), 33, 33, per_token=True),
        masked_text_loss,
    )


class _Narrow(nn.Module):
    """A line, and after it a narrow detour that learns (an adapter)."""

    def __init__(self, line: nn.Linear, width: int) -> None:
        super().__init__()
        self.line = line
        self.down, self.up = nn.Linear(line.out_features, width), nn.Linear(width, line.out_features)

    def forward(self, x: Tensor) -> Tensor:
        y = self.line(x)
        out: Tensor = y + self.up(F.gelu(self.down(y)))
        return out


@case("adamw", "tf32", 16, evaluate=True)
def detours() -> Spec:
    """BERT stays; a detour after every block's lines learns, and the head."""
    model = hub().BertForSequenceClassification(hub().BertConfig(num_labels=4))
    freeze(model.bert)
    for layer in model.bert.encoder.layer:
        layer.attention.output.dense = _Narrow(layer.attention.output.dense, 64)
        layer.output.dense = _Narrow(layer.output.dense, 64)
    return Spec(model, padded_to_longest((150, 128, 163), 30522, 4), masked_text_loss)


# Written.


@case("adamw", "tf32", 4, accumulate=4, clip=True)
def emails() -> Spec:
    """GPT-2 in blocks of 256, four small batches a step."""
    return Spec(
        hub().GPT2LMHeadModel(hub().GPT2Config(use_cache=False)), tokens(50257, 256), language_model_loss
    )


@case("adamw", "amp_fp16", 8)
def late_blocks_write() -> Spec:
    """GPT-2 whose last three blocks learn."""
    model = hub().GPT2LMHeadModel(hub().GPT2Config(n_layer=10, use_cache=False))
    freeze(model)
    for part in (*model.transformer.h[-3:], model.transformer.ln_f):
        part.requires_grad_(True)
    return Spec(model, tokens(50257, 320), language_model_loss)


@case("adamw", "bf16", 4)
def few_paths_in_llama() -> Spec:
    """Low paths beside queries and values only."""
    config = hub().LlamaConfig(
        vocab_size=32000, hidden_size=768, intermediate_size=2048, num_hidden_layers=14, num_attention_heads=12, num_key_value_heads=4,
        use_cache=False,
    )  # fmt: skip
    return Spec(
        lowered(hub().LlamaForCausalLM(config), ("q_proj", "v_proj"), 8),
        tokens(32000, 640),
        language_model_loss,
    )


@case("adamw_fused", "bf16", 6, accumulate=2, clip=True)
def smallest_of_smalls() -> Spec:
    """Thirty thin layers, all of them learn."""
    return causal(
        "Llama", 384, vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True,
    )  # fmt: skip


@case("adamw", "bf16", 2, checkpoint=True, accumulate=2)
def third_qwen_adapted() -> Spec:
    config = hub().Qwen3Config(
        vocab_size=60000, hidden_size=1024, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=16, num_key_value_heads=8,
        head_dim=128, tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    model = lowered(hub().Qwen3ForCausalLM(config), _LINES, 32)
    model.enable_input_require_grads()
    return Spec(model, tokens(60000, 1024), language_model_loss)


@case("adamw", "amp_bf16", 6, clip=True)
def third_phi() -> Spec:
    """Lines that hold queries, keys and values together, and both gates."""
    return causal(
        "Phi3", 448, vocab_size=32064, hidden_size=640, intermediate_size=1706, num_hidden_layers=8, num_attention_heads=10,
        num_key_value_heads=10, pad_token_id=0,
    )  # fmt: skip


@case("adamw", "fp32", 4)
def third_gemma() -> Spec:
    """Five layers with a window for each without, norms on both sides."""
    config = hub().Gemma3TextConfig(
        vocab_size=40000, hidden_size=512, intermediate_size=1536, num_hidden_layers=12, num_attention_heads=4, num_key_value_heads=1,
        head_dim=128, sliding_window=128, use_cache=False,
    )  # fmt: skip
    return Spec(hub().Gemma3ForCausalLM(config), tokens(40000, 384), language_model_loss)


@case("lion", "amp_bf16", 8)
def open_recipe() -> Spec:
    """OLMo's second form, from the beginning."""
    return causal(
        "Olmo2", 512, vocab_size=20000, hidden_size=512, intermediate_size=2048, num_hidden_layers=10, num_attention_heads=8,
    )  # fmt: skip


@case("adamw", "amp_bf16", 4, checkpoint=True, clip=True)
def programs() -> Spec:
    """StarCoder's second form, layers computed again."""
    return causal(
        "Starcoder2", 768, vocab_size=49152, hidden_size=768, intermediate_size=3072, num_hidden_layers=10, num_attention_heads=12,
        num_key_value_heads=2,
    )  # fmt: skip


@case("adamw", "amp_fp16", 8)
def slopes_for_places() -> Spec:
    """BLOOM, which knows places by slopes."""
    return causal("Bloom", 288, vocab_size=40000, hidden_size=512, n_layer=8, n_head=8)


class _SoftPrompt(nn.Module):
    """Twenty vectors before the words learn; the language model stays."""

    def __init__(self) -> None:
        super().__init__()
        self.body = hub().GPT2LMHeadModel(hub().GPT2Config(use_cache=False))
        freeze(self.body)
        self.prompt = nn.Parameter(torch.randn(20, 768) * 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        words = self.body.transformer.wte(ids)
        told = self.body(inputs_embeds=torch.cat([self.prompt.expand(len(ids), -1, -1), words], 1)).logits
        return F.cross_entropy(told[:, 19:-1].flatten(0, 1), ids.flatten())


@case("adamw", "fp32", 8)
def only_a_prompt_learns() -> Spec:
    return Spec(_SoftPrompt(), tokens(50257, 140), lambda m, ids, _: m(ids))


class _Scored(nn.Module):
    """Several answers to a question, scored against each other, held near an older copy (as GRPO does)."""

    def __init__(self) -> None:
        super().__init__()
        config = hub().LlamaConfig(
            vocab_size=24000, hidden_size=576, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=9, num_key_value_heads=3,
            use_cache=False,
        )  # fmt: skip
        self.now = hub().LlamaForCausalLM(config)
        self.older = copy.deepcopy(self.now)
        freeze(self.older)

    @staticmethod
    def chances(model: nn.Module, ids: Tensor) -> Tensor:
        told = model(input_ids=ids).logits[:, :-1].log_softmax(2)
        return told.gather(2, ids[:, 1:].unsqueeze(2)).squeeze(2)

    def forward(self, ids: Tensor, score: Tensor) -> Tensor:
        gain = (score - score.mean()) / (score.std() + 1e-4)
        now = self.chances(self.now, ids)
        with torch.no_grad():
            older = self.chances(self.older, ids)
        away = (older - now).exp() - (older - now) - 1
        return -((now - now.detach()).exp() * gain.unsqueeze(1) - 0.04 * away).mean()


@case("adamw", "bf16", 8, clip=True)
def scored_answers() -> Spec:
    return Spec(_Scored(), made(kinds(24000, 256), bits()), lambda m, ids, score: m(ids, score))


class _SmallerWriter(nn.Module):
    """A GPT-2 of twelve layers teaches one of four what it expects."""

    def __init__(self) -> None:
        super().__init__()

        def made_of(layers: int) -> nn.Module:
            found: nn.Module = hub().GPT2LMHeadModel(
                hub().GPT2Config(n_layer=layers, vocab_size=20000, n_embd=512, n_head=8, use_cache=False)
            )
            return found

        self.master, self.learner = made_of(12), made_of(4)
        freeze(self.master)

    def forward(self, ids: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = (self.master(input_ids=ids).logits / 2).softmax(2)
        told = self.learner(input_ids=ids, labels=ids)
        near = F.kl_div(
            (told.logits / 2).log_softmax(2).flatten(0, 1), wanted.flatten(0, 1), reduction="batchmean"
        )
        return 0.5 * told.loss + 2 * near


@case("adamw", "amp_bf16", 12)
def smaller_writer() -> Spec:
    return Spec(_SmallerWriter(), tokens(20000, 256), lambda m, ids, _: m(ids))


@case("adafactor", "fp32", 12)
def many_languages() -> Spec:
    """mT5: few layers, many words."""
    config = hub().MT5Config(
        vocab_size=64000, d_model=512, d_ff=1024, num_layers=5, num_heads=6, d_kv=64, decoder_start_token_id=0, use_cache=False
    )  # fmt: skip
    return Spec(
        hub().MT5ForConditionalGeneration(config),
        written_for_texts(64000, ((100, 40), (84, 52), (112, 36))),
        masked_text_loss,
    )


@case("adamw", "amp_fp16", 12, clip=True, checkpoint=True)
def into_romanian() -> Spec:
    config = hub().MBartConfig(
        vocab_size=50000, d_model=512, encoder_layers=6, decoder_layers=6, encoder_ffn_dim=2048, decoder_ffn_dim=2048,
        encoder_attention_heads=8, decoder_attention_heads=8, use_cache=False,
    )  # fmt: skip
    return Spec(
        hub().MBartForConditionalGeneration(config),
        written_for_texts(50000, ((64, 60), (80, 72), (58, 66))),
        masked_text_loss,
    )


@case("adamw", "fp32", 8)
def letters_instead_of_words() -> Spec:
    """ByT5: bytes in, bytes out, a deep reader and a shallow writer."""
    config = hub().T5Config(
        vocab_size=384, d_model=768, d_ff=2048, d_kv=64, num_layers=6, num_decoder_layers=2, num_heads=8, feed_forward_proj="gated-gelu",
        decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip
    return Spec(
        hub().T5ForConditionalGeneration(config),
        written_for_texts(384, ((400, 100), (360, 120))),
        masked_text_loss,
    )
