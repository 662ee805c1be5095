"""The folder of the recordings for the rules, and the versions that were recorded."""

import json
import sys
from pathlib import Path
from typing import Any

RECORDINGS = Path("build/rules")
"""The folder of the recordings. The folder is not in the repository, because the recordings are large. Each program
has its own subfolder."""


def write_versions(folder: Path) -> None:
    """Save the versions of torch and cuDNN and the name of the GPU next to a recording."""
    import torch

    found: dict[str, Any] = {
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
    for name in ("torchvision", "transformers"):
        if name in sys.modules:
            found[name] = sys.modules[name].__version__
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "versions.json").write_text(json.dumps(found, indent=1) + "\n")


def read_versions(folder: Path) -> dict[str, Any]:
    path = folder / "versions.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found
