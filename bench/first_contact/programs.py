"""The public training programs, with arguments for a short run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.first_contact import generated_data as data


@dataclass(frozen=True, kw_only=True)
class Program:
    repository: str
    folder: str
    """The working directory, inside the repository."""
    arguments: str
    """The script and its arguments, for a short run."""
    prepare: Callable[[Path], None] | None = None
    """A function that generates the data in the working directory."""
    copy: str = "."
    """The files and folders of the repository that the program needs."""
    ranks: bool = False
    """True if the program supports one process per GPU, started by torchrun."""
    alone: bool = True
    """True if the program also runs as one process without a launcher."""
    gpu: bool = True
    """True if the program uses a GPU at all."""

    @property
    def name(self) -> str:
        return f"{self.repository}/{self.folder}/{self.arguments.split()[0]}".replace("/./", "/")


def _gan(
    name: str, arguments: str = "--n_epochs 1 --batch_size 64", script: str = "",
    prepare: Callable[[Path], None] = data.mnist,
) -> Program:  # fmt: skip
    arguments = f"{script or name}.py {arguments}"
    return Program(
        repository="PyTorch-GAN", folder=f"implementations/{name}", copy=f"implementations/{name}",
        arguments=arguments, prepare=prepare,
    )  # fmt: skip


def _image_gan(name: str, arguments: str) -> Program:
    return _gan(name, f"--n_epochs 1 --n_cpu 0 {arguments}", prepare=data.pairs)


def _example(
    folder: str, arguments: str, prepare: Callable[[Path], None] | None = None, *,
    ranks: bool = False, alone: bool = True, gpu: bool = True,
) -> Program:  # fmt: skip
    return Program(
        repository="examples", folder=folder, copy=folder, arguments=arguments, prepare=prepare, ranks=ranks,
        alone=alone, gpu=gpu,
    )  # fmt: skip


def _cleanrl(script: str, arguments: str) -> Program:
    return Program(
        repository="cleanrl",
        folder="cleanrl",
        copy="cleanrl cleanrl_utils",
        arguments=f"{script}.py {arguments}",
    )


def _timm(arguments: str) -> Program:
    return Program(
        repository="pytorch-image-models", folder=".", prepare=data.classes, ranks=arguments.startswith("train"),
        arguments=arguments,
    )  # fmt: skip


def _vision(folder: str, arguments: str, prepare: Callable[[Path], None], *, ranks: bool = True) -> Program:
    folder = f"references/{folder}"
    return Program(
        repository="vision", folder=folder, copy=folder, arguments=f"train.py {arguments}", prepare=prepare, ranks=ranks
    )  # fmt: skip


_TIMM = "train.py --data-dir images --epochs 1 -j 1 --num-classes 6 --cooldown-epochs 0 --warmup-epochs 0"
_PENDULUM = "--env-id Pendulum-v1 --total-timesteps 300"

PROGRAMS = (
    _example("mnist", "main.py --epochs 1 --dry-run", data.mnist),
    _example("mnist_rnn", "main.py --epochs 1 --dry-run --accel", data.mnist),
    _example("mnist_forward_forward", "main.py --epochs 2 --train_size 500 --test_size 100", data.mnist),
    _example("mnist_hogwild", "main.py --epochs 1 --dry-run --cuda", data.mnist),
    _example("vae", "main.py --epochs 1", data.mnist),
    _example("siamese_network", "main.py --epochs 1 --dry-run", data.mnist),
    _example("dcgan", "main.py --dataset fake --niter 1 --dry-run --batchSize 16 --accel --workers 0"),
    _example("imagenet", "main.py images --epochs 1 -a resnet18 -b 8 -j 0", data.classes),
    _example(
        "imagenet",
        "main.py images --epochs 1 -a resnet18 -b 8 -j 0 --multiprocessing-distributed --world-size 1 --rank 0 "
        "--dist-url tcp://127.0.0.1:29511", data.classes,
    ),
    _example("word_language_model", "main.py --epochs 1 --dry-run --accel", data.words),
    _example(
        "word_language_model", "main.py --epochs 1 --dry-run --accel --model Transformer --nhead 2 --emsize 100 --nhid 100",
        data.words,
    ),
    _example("gat", "main.py --epochs 2 --dry-run", data.citations),
    _example("regression", "main.py", gpu=False),
    _example("distributed/ddp-tutorial-series", "single_gpu.py 1 1"),
    _example("distributed/ddp-tutorial-series", "multigpu.py 1 1"),
    _example("distributed/ddp-tutorial-series", "multigpu_torchrun.py 1 1", ranks=True, alone=False),
    _example("distributed/ddp-tutorial-series", "multinode.py 1 1", ranks=True, alone=False),
    _example("distributed/ddp", "example.py", ranks=True, alone=False),
    _example("distributed/FSDP2", "example.py", ranks=True, alone=False),
    _example("distributed/tensor_parallelism", "tensor_parallel_example.py", ranks=True, alone=False),
    _example("distributed/tensor_parallelism", "sequence_parallel_example.py", ranks=True, alone=False),
    Program(
        repository="nanoGPT", folder=".", prepare=data.characters, ranks=True,
        arguments="train.py config/train_shakespeare_char.py --max_iters=2 --eval_iters=1 --compile=False --batch_size=4 "
        "--dtype=float32 --n_layer=2 --n_head=2 --n_embd=64 --block_size=64 --gradient_accumulation_steps=2",
    ),
    Program(
        repository="nanoGPT", folder=".", arguments="bench.py --real_data=False --compile=False --batch_size=1 --block_size=8 --dtype=float32"
    ),
    Program(repository="minGPT", folder=".", arguments="projects/adder/adder.py --trainer.max_iters=2"),
    Program(
        repository="minGPT", folder=".", prepare=data.text,
        arguments="projects/chargpt/chargpt.py --trainer.max_iters=2 --trainer.batch_size=4 --model.model_type=gpt-nano",
    ),
    _gan("gan"), _gan("dcgan"), _gan("wgan"), _gan("wgan_gp"), _gan("wgan_div"), _gan("cgan"), _gan("acgan"), _gan("lsgan"),
    _gan("infogan"), _gan("aae"), _gan("began"), _gan("ebgan"), _gan("dragan"), _gan("sgan"), _gan("softmax_gan"),
    _gan("relativistic_gan"), _gan("bgan"), _gan("cluster_gan", "--n_epochs 1 --batch_size 128", "clustergan"),
    _image_gan("pix2pix", "--dataset_name edges2shoes --batch_size 4"),
    _image_gan("bicyclegan", "--dataset_name edges2shoes --batch_size 4"),
    _image_gan("discogan", "--dataset_name edges2shoes --batch_size 4"),
    _image_gan("dualgan", "--dataset_name edges2shoes --batch_size 4"),
    _image_gan("munit", "--dataset_name edges2shoes --batch_size 1 --img_height 128 --img_width 128 --dim 8 --decay_epoch 0"),
    _image_gan("cyclegan", "--dataset_name apple2orange --batch_size 1 --img_height 64 --img_width 64 --n_residual_blocks 2 --decay_epoch 0"),
    _image_gan("unit", "--dataset_name apple2orange --batch_size 1 --img_height 64 --img_width 64 --dim 16 --decay_epoch 0"),
    _image_gan("ccgan", "--batch_size 500 --img_size 32 --mask_size 8"),
    _image_gan("context_encoder", "--batch_size 500 --img_size 32 --mask_size 16"),
    _image_gan("stargan", "--batch_size 4 --img_height 64 --img_width 64 --residual_blocks 2 --decay_epoch 0"),
    Program(
        repository="Pytorch-UNet", folder=".", prepare=data.masks, arguments="train.py --epochs 1 --batch-size 2 --scale 0.12"
    ),
    Program(
        repository="pygcn", folder="pygcn", prepare=lambda folder: data.citations(folder / "../data"), arguments="train.py --epochs 2"
    ),
    _cleanrl("dqn", "--total-timesteps 300 --learning-starts 100"),
    _cleanrl("c51", "--total-timesteps 300 --learning-starts 100"),
    _cleanrl("ppo", "--total-timesteps 1100"),
    _cleanrl("pqn", "--total-timesteps 1100"),
    _cleanrl("ddpg_continuous_action", f"{_PENDULUM} --learning-starts 100 --buffer-size 1000"),
    _cleanrl("td3_continuous_action", f"{_PENDULUM} --learning-starts 100 --buffer-size 1000"),
    _cleanrl("sac_continuous_action", f"{_PENDULUM} --learning-starts 100 --buffer-size 1000"),
    _cleanrl("ppo_continuous_action", "--env-id Pendulum-v1 --total-timesteps 512 --num-steps 256"),
    _cleanrl("rpo_continuous_action", "--env-id Pendulum-v1 --total-timesteps 512 --num-steps 256"),
    _timm(f"{_TIMM} -b 8 --model resnet18 --input-size 3 64 64"),
    _timm(f"{_TIMM} -b 4 --model vit_tiny_patch16_224 --model-kwargs depth=4 --opt adamw --amp --model-ema"),
    _timm(f"{_TIMM} -b 8 --model efficientnet_b0 --input-size 3 64 64 --mixup 0.2 --drop-path 0.1 --grad-checkpointing"),
    _timm("benchmark.py --model resnet18 --bench train -b 8 --img-size 64 --num-warm-iter 1 --num-bench-iter 5"),
    _vision("classification", "--data-path images --epochs 1 -b 4 -j 0 --model mobilenet_v3_small", data.classes),
    _vision(
        "classification",
        "--data-path images --epochs 1 -b 4 -j 0 --model resnet18 --amp --model-ema --mixup-alpha 0.2 --auto-augment ta_wide",
        data.classes,
    ),
    _vision(
        "similarity", "--dataset-dir fashion --epochs 1 -p 2 -k 2 --eval-batch-size 8 -j 0", data.fashion, ranks=False
    ),
)  # fmt: skip

OMITTED = {
    "examples/fast_neural_style, PyTorch-GAN/srgan and esrgan": "download pretrained weights",
    "examples/gcn, cogan, pixelda, SupContrast/main_ce.py, main_linear.py, pytorch-cifar": "always download their data",
    "examples/language_translation, legacy/snli, distributed/FSDP/T5_training.py, distributed/minGPT-ddp": "need torchtext, a downloaded model or hydra",
    "examples/distributed/rpc": "CPU only, processes of different kinds",
    "examples/distributed/tensor_parallelism/fsdp_tp_example.py": "needs 4 GPUs and a 24-layer model",
    "examples/fx": "do not train",
    "examples/time_sequence_prediction": "fails with python: torch.load refuses its data",
    "examples/reinforcement_learning": "train on the CPU until the game is solved",
    "examples/super_resolution, SupContrast/main_supcon.py": "need packages that are not installed (six, tensorboard_logger)",
    "cleanrl: Atari, procgen, JAX, envpool, MuJoCo and PettingZoo programs": "need packages that are not installed",
    "vision/references: detection, segmentation, optical_flow, stereo, video_classification, train_quantization": "need COCO tools, flow or video data, or the CPU",
}
"""Programs of the same repositories that are not run, with the reason."""
