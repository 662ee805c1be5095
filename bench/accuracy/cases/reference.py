"""The reference cases, which train well-known models in several precisions and at two batch sizes."""

from bench.accuracy.cases.case import Case


def _grid(model: str, batches: tuple[int, ...], *combinations: tuple[str, str]) -> list[Case]:
    return [
        Case(model=model, optimizer=optimizer, precision=precision, batch=batch, inputs_first=True)
        for optimizer, precision in combinations
        for batch in batches
    ]


REFERENCE = [
    *_grid("resnet18", (32, 256), ("sgdm", "fp32"), ("adam", "amp_fp16")),
    *_grid("resnet50", (16, 128), ("sgdm", "fp32"), ("adamw", "amp_bf16"), ("adamw", "fp32")),
    *_grid("vgg16", (16, 64), ("sgdm", "fp32"), ("adam", "amp_fp16")),
    *_grid("mobilenet_v3_large", (32, 200), ("rmsprop", "fp32"), ("adamw", "amp_bf16")),
    *_grid("convnext_tiny", (16, 96), ("adamw", "fp32"), ("adamw_fused", "amp_bf16")),
    *_grid("vit_b_16", (16, 64), ("adamw", "fp32"), ("adamw", "amp_bf16")),
    *_grid("gpt2", (2, 12), ("adamw", "fp32"), ("adamw", "amp_bf16"), ("adamw_fused", "bf16")),
    *_grid("gpt2_ckpt", (4, 24), ("adamw", "fp32"), ("adamw", "amp_bf16")),
    *_grid("bert_base", (8, 64), ("adamw", "fp32"), ("adamw", "amp_fp16")),
    *_grid("lstm", (20, 160), ("sgd", "fp32"), ("adam", "amp_fp16")),
    *_grid("unet", (2, 12), ("adam", "fp32"), ("adam", "amp_bf16")),
    *_grid("mlp", (64, 8192), ("sgd", "fp32"), ("adam", "fp32")),
]
