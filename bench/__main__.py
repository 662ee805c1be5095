"""Every figure in the documentation, printed anew: `make bench`. Those that need a GPU say so and are left out."""

import importlib

import torch

ANYWHERE = ("accuracy.allocator_replay", "overhead.capture_file", "overhead.recorder", "leaks.linter")
WITH_A_GPU = ("overhead.run_command",)


def main() -> None:
    for name in ANYWHERE:
        print(f"=== python -m bench.{name}", flush=True)
        importlib.import_module(f"bench.{name}").main()
    for name in WITH_A_GPU:
        if torch.cuda.is_available():
            print(f"=== python -m bench.{name}", flush=True)
            importlib.import_module(f"bench.{name}").main()
        else:
            print(f"=== python -m bench.{name}: left out, it needs a CUDA GPU", flush=True)


if __name__ == "__main__":
    main()
