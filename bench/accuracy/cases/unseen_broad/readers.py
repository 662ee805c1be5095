"""Networks of transformers' that read: texts sorted, graded, tagged and ranked. Cases stand above the model they train."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.accuracy.cases.case import CaseSet
from bench.lib.models import parts as parts
from bench.lib.models.parts import Spec, freeze, hub, kinds, made, masked_text_loss, padded_to_longest, sized

SEVENTH_READERS = CaseSet()
case = SEVENTH_READERS.case


@case("adamw", "amp_fp16", 9, clip=True)
def grades_of_essays() -> Spec:
    """BERT's base size tells one number for each essay."""
    model = hub().BertForSequenceClassification(hub().BertConfig(num_labels=1))

    def loss(model: nn.Module, ids: Tensor, mask: Tensor, grade: Tensor) -> Tensor:
        told = model(input_ids=ids, attention_mask=mask).logits.squeeze(1)
        return F.mse_loss(told.float(), grade.float())

    return Spec(model, padded_to_longest((180, 212, 164), 30522, 6), loss)


@case("adamw", "amp_bf16", 6, accumulate=2)
def five_endings() -> Spec:
    """RoBERTa's base size reads a story with each of five endings."""
    config = hub().RobertaConfig(vocab_size=50265, max_position_embeddings=514)
    return Spec(
        hub().RobertaForMultipleChoice(config), made(kinds(50265, 5, 72), kinds(5)), parts.masked_loss
    )


@case("adamw", "fp32", 10, clip=True)
def many_tongues_few_learn() -> Spec:
    """XLM-RoBERTa's base size; a quarter of a million words stay as they are."""
    config = hub().XLMRobertaConfig(vocab_size=250002, max_position_embeddings=514, num_labels=3)
    model = hub().XLMRobertaForSequenceClassification(config)
    freeze(model.roberta.embeddings)
    return Spec(model, padded_to_longest((96, 120, 84), 250002, 3), masked_text_loss)


@case("adam", "fp32", 12)
def convolved_tags() -> Spec:
    """ConvBERT: half of the heads are kernels made from the words they pass over."""
    model = hub().ConvBertForTokenClassification(hub().ConvBertConfig(**sized(512, 8, num_labels=13)))
    return Spec(model, padded_to_longest((110, 96, 124), 30522, 13, per_token=True), masked_text_loss)


@case("adamw", "fp32", 26)
def phone_intents() -> Spec:
    """MobileBERT: layers that are narrow in their middles."""
    model = hub().MobileBertForSequenceClassification(
        hub().MobileBertConfig(num_hidden_layers=14, num_labels=77)
    )
    return Spec(model, padded_to_longest((64, 48, 70), 30522, 77), masked_text_loss)


@case("adamw_fused", "amp_bf16", 5, checkpoint=True)
def hidden_words_of_code() -> Spec:
    """ModernBERT guesses hidden words of programs; layers are computed again."""
    config = hub().ModernBertConfig(
        vocab_size=32000, hidden_size=640, intermediate_size=960, num_hidden_layers=12, num_attention_heads=10,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    batch = padded_to_longest((640, 512), 32000, 32000, per_token=True)
    return Spec(hub().ModernBertForMaskedLM(config), batch, masked_text_loss)


@case("adamw", "amp_fp16", 5, evaluate=True)
def passages_in_order() -> Spec:
    """Eight passages for each question, twelve narrow layers; the first shall be above the others."""
    model = hub().BertForSequenceClassification(hub().BertConfig(**sized(384, 12, num_labels=1)))

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        pairs = ids.flatten(0, 1)
        told = model(input_ids=pairs, attention_mask=torch.ones_like(pairs)).logits.view(-1, 8)
        return F.cross_entropy(told.float(), ids.new_zeros(len(ids)))

    return Spec(model, made(kinds(30522, 8, 150)), loss)
