"""Generates small random datasets in the layouts that public programs read, so that the programs download nothing."""

import os
import struct
from pathlib import Path

import numpy


def _chance() -> numpy.random.Generator:
    return numpy.random.default_rng(0)


def _images(target: Path, count: int, height: int, width: int, suffix: str = "jpg") -> None:
    from PIL import Image

    target.mkdir(parents=True, exist_ok=True)
    chance = _chance()
    for number in range(count):
        pixels = chance.integers(0, 255, (height, width, 3), dtype=numpy.uint8)
        Image.fromarray(pixels).save(target / f"{number:06}.{suffix}")


def _digits(raw: Path, train: int, test: int) -> None:
    raw.mkdir(parents=True, exist_ok=True)
    chance = _chance()
    for name, count in (("train", train), ("t10k", test)):
        images = chance.integers(0, 255, (count, 28, 28), dtype=numpy.uint8)
        labels = chance.integers(0, 10, count).astype(numpy.uint8)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(
            struct.pack(">IIII", 2051, count, 28, 28) + images.tobytes()
        )
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels.tobytes())


def mnist(folder: Path) -> None:
    """Generate digits in every folder in which a program expects MNIST."""
    for place in ("data", "../data", "../../data", "../../data/mnist", "mnist/data"):
        _digits((folder / place / "MNIST" / "raw").resolve(), 320, 200)


def fashion(folder: Path) -> None:
    _digits(folder / "fashion" / "FashionMNIST" / "raw", 200, 40)


def words(folder: Path) -> None:
    chance = _chance()
    target = folder / "data" / "wikitext-2"
    target.mkdir(parents=True, exist_ok=True)
    for name in ("train", "valid", "test"):
        lines = (" ".join(f"w{n}" for n in chance.integers(0, 2000, 20)) for _ in range(300))
        (target / f"{name}.txt").write_text("\n".join(lines))


def characters(folder: Path) -> None:
    chance = _chance()
    target = folder / "data" / "shakespeare_char"
    target.mkdir(parents=True, exist_ok=True)
    for name in ("train", "val"):
        chance.integers(0, 65, 100_000).astype(numpy.uint16).tofile(target / f"{name}.bin")


def text(folder: Path) -> None:
    """Generate a text of characters from the space to `z`. They include all characters of the programs' prompts."""
    characters = _chance().integers(32, 123, 4000).astype(numpy.uint8)
    (folder / "input.txt").write_bytes(characters.tobytes())


def masks(folder: Path) -> None:
    """Generate images, each with a mask."""
    from PIL import Image

    _images(folder / "data" / "imgs", 12, 200, 300, "png")
    (folder / "data" / "masks").mkdir(parents=True, exist_ok=True)
    chance = _chance()
    for number in range(12):
        pixels = chance.integers(0, 2, (200, 300), dtype=numpy.uint8)
        Image.fromarray(pixels).save(folder / f"data/masks/{number:06}_mask.png")


def classes(folder: Path) -> None:
    """Generate one folder of images per class."""
    for part in ("train", "val", "validation"):
        for name in "abcdef":
            _images(folder / "images" / part / name, 6, 80, 80)


def pairs(folder: Path) -> None:
    """Generate paired, unpaired and labeled images for the image-to-image GANs."""
    data = (folder / "../../data").resolve()
    for part in ("train", "val", "test"):
        _images(data / "edges2shoes" / part, 8, 64, 128)
        for side in ("A", "B"):
            _images(data / "apple2orange" / part / side, 8, 64, 64)
    faces = data / "img_align_celeba"
    _images(faces, 8, 64, 64)
    for number in range(8, 2008):  # one of the programs tests on the last 2000 files
        os.link(faces / f"{number % 8:06}.jpg", faces / f"{number:06}.jpg")
    names = "Black_Hair Blond_Hair Brown_Hair Male Young"
    labels = "".join(f"{number:06}.jpg 1 -1 -1 1 1\n" for number in range(2008))
    (faces / "list_attr_celeba.txt").write_text(f"2008\n{names}\n{labels}")


def citations(folder: Path) -> None:
    """Generate a graph in the layout of Cora, with 1700 papers."""
    chance = _chance()
    target = (folder / "cora").resolve()
    target.mkdir(parents=True, exist_ok=True)
    kinds = ["Case_Based", "Genetic_Algorithms", "Neural_Networks", "Theory"]
    features = chance.integers(0, 2, (1700, 64))
    content = (f"{n} {' '.join(map(str, row))} {kinds[n % 4]}\n" for n, row in enumerate(features))
    (target / "cora.content").write_text("".join(content))
    cites = (f"{first} {second}\n" for first, second in chance.integers(0, 1700, (3400, 2)))
    (target / "cora.cites").write_text("".join(cites))
