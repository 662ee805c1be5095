"""Every figure in the documentation, printed anew: `make bench`. Those that need a GPU say so and are left out."""

import importlib

import torch

ANYWHERE = ("allocator_replay", "capture", "recorder_overhead", "lint")
WITH_A_GPU = ("run_overhead_gpu",)


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
