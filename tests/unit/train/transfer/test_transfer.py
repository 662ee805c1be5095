"""Transfer learning: freezing, parameter groups, heads of various libraries, gradual unfreezing."""

import copy
import pickle

import pytest
import torch
from torch import nn

import legroom
from legroom import transfer
from legroom.errors import UsageError


class Net(nn.Module):
    def __init__(self, norm=nn.BatchNorm2d):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), norm(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), norm(8)
        )
        self.fc = nn.Linear(8, 10)

    def forward(self, images):
        return self.fc(self.body(images).mean((2, 3)))


def trainable(model):
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


# ------------------------------------------------------------ freezing


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("fc", ["fc.weight", "fc.bias"]),
        (("fc.bias", "body.3"), ["body.3.weight", "body.3.bias", "fc.bias"]),
        ("*.bias", ["body.0.bias", "body.1.bias", "body.3.bias", "body.4.bias", "fc.bias"]),
        ((), []),
    ],
)
def test_all_parameters_except_the_selected_are_frozen(names, expected):
    model = Net()
    transfer.freeze(model, trainable=names)
    assert trainable(model) == expected


def test_the_error_for_an_unknown_name_suggests_the_closest():
    with pytest.raises(UsageError, match="No parameter of the model matches 'fcc'. Did you mean 'fc'?"):
        transfer.freeze(Net(), trainable="fcc")
    with pytest.raises(
        UsageError, match="No parameter of the model matches 'zzz'. The model's top-level modules: body, fc"
    ):
        transfer.freeze(Net(), trainable="zzz")


def test_gradients_of_frozen_parameters_are_freed():
    model = Net()
    model(torch.randn(2, 3, 4, 4)).sum().backward()
    transfer.freeze(model, trainable="fc")
    assert [name for name, parameter in model.named_parameters() if parameter.grad is not None] == [
        "fc.weight",
        "fc.bias",
    ]


def step(model):
    model.train()
    model(torch.randn(4, 3, 5, 5) * 9 + 4).sum().backward()


def test_running_statistics_of_frozen_batch_norm_do_not_change():
    model = Net()
    transfer.freeze(model, trainable="fc")
    before = model.body[1].running_mean.clone()
    step(model)
    assert torch.equal(model.body[1].running_mean, before)


def test_running_statistics_of_trainable_batch_norm_are_updated():
    model = Net()
    transfer.freeze(model, trainable=("fc", "body.4"))
    before = model.body[4].running_mean.clone()
    step(model)
    assert not torch.equal(model.body[4].running_mean, before)


def test_batch_norm_without_parameters_follows_its_parent():
    model = Net(norm=lambda channels: nn.BatchNorm2d(channels, affine=False))
    transfer.freeze(model, trainable="fc")
    before = model.body[1].running_mean.clone()
    step(model)
    assert torch.equal(model.body[1].running_mean, before)


def test_unfreezing_enables_batch_norm_updates():
    model = Net().train()
    transfer.freeze(model, trainable="fc")
    assert transfer.unfreeze(model, "body.1") == ["body.1.weight", "body.1.bias"]
    assert (model.body[1].training, model.body[4].training) == (True, False)
    before = model.body[1].running_mean.clone()
    step(model)
    assert not torch.equal(model.body[1].running_mean, before)
    transfer.unfreeze(model)
    assert len(trainable(model)) == 10


@pytest.mark.parametrize("copy_model", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_frozen_model_is_frozen(copy_model):
    model = Net()
    transfer.freeze(model, trainable="fc")
    twin = copy_model(model)
    before = twin.body[1].running_mean.clone()
    step(twin)
    assert torch.equal(twin.body[1].running_mean, before)
    assert trainable(twin) == ["fc.weight", "fc.bias"]


def test_the_result_of_freeze_states_the_saving():
    model = Net()
    frozen = transfer.freeze(model, trainable="fc")
    size = sum(parameter.nbytes for parameter in model.body.parameters())
    assert (frozen.gradient_bytes, frozen.optimizer_state_bytes, frozen.norm_layers) == (size, 2 * size, 2)
    assert frozen.saved_bytes == 3 * size
    assert str(frozen) == (
        "840 of 930 parameters are frozen (90.3%). This saves 3.3 KiB of gradients and 6.6 KiB of Adam state. "
        "Pass batch= to include activations."
    )


@pytest.mark.slow
def test_the_predicted_saving_matches_a_virtual_gpu():
    def model():
        torch.manual_seed(0)
        return nn.Sequential(
            *(layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.GELU())), nn.Linear(256, 4)
        )

    def peak(make):
        with legroom.VirtualGPU("1GiB"):
            net = make().cuda()
            optimizer = torch.optim.AdamW(transfer.param_groups(net, lr=1e-3))
            torch.cuda.reset_peak_memory_stats()
            for _ in range(2):
                optimizer.zero_grad()
                nn.functional.cross_entropy(
                    net(torch.randn(512, 256, device="cuda")),
                    torch.zeros(512, dtype=torch.long, device="cuda"),
                ).backward()
                optimizer.step()
            return torch.cuda.max_memory_allocated()

    def frozen_model():
        net = model()
        transfer.freeze(net, trainable="12")
        return net

    frozen = transfer.freeze(
        model(), trainable="12", batch=(torch.randn(512, 256), torch.zeros(512, dtype=torch.long))
    )
    measured = peak(model) - peak(frozen_model)
    assert frozen.saved_bytes == pytest.approx(measured, rel=0.05)
    assert "Predicted peak memory of a step" in str(frozen)


# ------------------------------------------------------------ groups


def test_param_groups_exclude_frozen_parameters():
    model = Net()
    transfer.freeze(model, trainable=("fc", "body.3"))
    groups = transfer.param_groups(model, {"fc": {"lr": 0.1}, "*.bias": {"weight_decay": 0.0}}, lr=0.01)
    assert groups == [
        {"params": list(model.fc.parameters()), "lr": 0.1},
        {"params": [model.body[3].bias], "lr": 0.01, "weight_decay": 0.0},
        {"params": [model.body[3].weight], "lr": 0.01},
    ]
    torch.optim.AdamW(groups)


def test_param_groups_reject_a_fully_frozen_model():
    model = Net()
    transfer.freeze(model)
    with pytest.raises(UsageError, match="All parameters of the model are frozen"):
        transfer.param_groups(model)


# ------------------------------------------------------------ heads


def outputs(model, *inputs):
    model.eval()
    with torch.no_grad():
        return model(*inputs)


def test_the_head_of_a_sequential_is_its_last_layer():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3, bias=False), nn.Softmax(1)).double()
    body = model[0].weight
    assert transfer.replace_head(model, 7) == ("2",)
    assert outputs(model, torch.randn(2, 4).double()).shape == (2, 7)
    assert model[2].bias is None
    assert model[0].weight is body


class LikeVGG(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        self.classifier = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 1000))

    def forward(self, images):
        return self.classifier(self.features(images).mean((2, 3)))


class LikeSqueezeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_classes = 1000
        self.features = nn.Conv2d(3, 4, 3)
        self.classifier = nn.Sequential(
            nn.Dropout(), nn.Conv2d(4, 1000, kernel_size=1), nn.ReLU(), nn.AdaptiveAvgPool2d((1, 1))
        )

    def forward(self, images):
        return self.classifier(self.features(images)).flatten(1)


class LikeInception(nn.Module):
    def __init__(self):
        super().__init__()
        self.AuxLogits = nn.Sequential()
        self.AuxLogits.add_module("fc", nn.Linear(4, 1000))
        self.features = nn.Conv2d(3, 4, 3)
        self.fc = nn.Linear(4, 1000)

    def forward(self, images):
        return self.fc(self.features(images).mean((2, 3)))


@pytest.mark.parametrize(
    ("make", "head"),
    [
        (Net, ("fc",)),
        (LikeVGG, ("classifier.3",)),
        (LikeSqueezeNet, ("classifier.1",)),
        (LikeInception, ("fc", "AuxLogits.fc")),
    ],
)
def test_torchvision_heads_are_replaced(make, head):
    model = make()
    assert transfer.replace_head(model, 5) == head
    assert outputs(model, torch.randn(2, 3, 6, 6)).shape == (2, 5)
    assert getattr(model, "num_classes", 5) == 5


def test_a_timm_model_replaces_its_head_itself():
    class LikeTimm(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.ModuleDict({"fc": nn.Linear(4, 1000)})

        def get_classifier(self):
            return self.head["fc"]

        def reset_classifier(self, num_classes):
            self.head["fc"] = nn.Linear(4, num_classes)

    model = LikeTimm()
    assert transfer.replace_head(model, 5) == ("head.fc",)
    assert model.head["fc"].out_features == 5


def test_transformers_heads_are_replaced_and_the_config_is_updated():
    pytest.importorskip("transformers")
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        RobertaConfig,
        RobertaForSequenceClassification,
    )

    for config, kind, head in (
        (BertConfig, BertForSequenceClassification, "classifier"),
        (RobertaConfig, RobertaForSequenceClassification, "classifier.out_proj"),
    ):
        model = kind(
            config(
                hidden_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                intermediate_size=16,
                vocab_size=50,
            )
        )
        assert transfer.replace_head(model, 5) == (head,)
        output = outputs(model, torch.ones(3, 4, dtype=torch.long))
        assert output.logits.shape == (3, 5)
        assert (model.config.num_labels, model.num_labels, len(model.config.id2label)) == (5, 5, 5)
        with_labels = model(torch.ones(3, 4, dtype=torch.long), labels=torch.tensor([0, 1, 4]))
        assert with_labels.loss.isfinite()


def test_a_transformers_model_without_a_head_is_rejected_with_advice():
    pytest.importorskip("transformers")
    from transformers import BertConfig, BertModel

    model = BertModel(
        BertConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=50
        )
    )
    with pytest.raises(UsageError, match=r"BertModel has no classification head\. .*num_labels=5"):
        transfer.replace_head(model, 5)


@pytest.mark.parametrize(
    ("model", "num_classes", "message"),
    [
        (
            nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)),
            3,
            r"its last layer \(1, a LayerNorm\) is not linear",
        ),
        (nn.Sequential(nn.Conv2d(2, 2, 3)), 3, "no head to replace"),
        (nn.ReLU(), 3, "no head to replace"),
        (nn.Linear(2, 2), 3, "a single layer"),
        (nn.Sequential(nn.Linear(2, 2)), 0, "num_classes=0 is not valid"),
        ("resnet18", 3, r"expects a model \(nn.Module\), not str"),
    ],
)
def test_models_without_a_head_are_rejected(model, num_classes, message):
    with pytest.raises(UsageError, match=message):
        transfer.replace_head(model, num_classes)


def test_a_head_with_shared_weights_is_rejected():
    model = nn.Module()
    model.words = nn.Embedding(50, 8)
    model.output = nn.Linear(8, 50, bias=False)
    model.output.weight = model.words.weight
    with pytest.raises(UsageError, match="output shares its weights with words"):
        transfer.replace_head(model, 5)


# ------------------------------------------------------------ gradual unfreezing


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)


def unfreezing(**options):
    torch.manual_seed(0)
    model = Stack()
    transfer.freeze(model, trainable="head")
    optimizer = torch.optim.AdamW(transfer.param_groups(model, lr=1e-2))
    return model, optimizer, transfer.GradualUnfreezing(model, optimizer, lr=1e-4, **options)


def test_blocks_are_listed_from_the_end():
    model = Stack()
    transfer.freeze(model, trainable="head")
    assert transfer.blocks(model) == [("layers.2",), ("layers.1",), ("layers.0",), ("embed",)]


def test_small_blocks_are_merged_with_their_neighbor():
    model = nn.Sequential(
        nn.LayerNorm(100), nn.Linear(100, 100), nn.LayerNorm(100), nn.Linear(100, 100), nn.Linear(100, 1)
    )
    assert transfer.blocks(model) == [("4", "3"), ("2", "1", "0")]


def test_nested_stacks_are_split_into_layers():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(400, 8)  # more than all layers
            self.encoder = nn.Module()
            self.encoder.layer = nn.ModuleList(Net() for _ in range(2))

    model = nn.Module()
    model.inner = Encoder()
    assert transfer.blocks(model) == [
        ("inner.encoder.layer.1",),
        ("inner.encoder.layer.0",),
        ("inner.embed",),
    ]


def test_a_stage_is_unfrozen_every_n_epochs():
    model, _, stages = unfreezing(every_n_epochs=2)
    unfrozen = [(epoch, stages.at(epoch)) for epoch in range(5)]
    assert unfrozen == [
        (0, []),
        (1, []),
        (2, ["layers.2.weight", "layers.2.bias"]),
        (3, []),
        (4, ["layers.1.weight", "layers.1.bias"]),
    ]
    assert trainable(model)[0] == "layers.1.weight"


def test_a_stage_has_its_own_learning_rate_and_no_state_before_it_starts():
    model, optimizer, stages = unfreezing()
    assert [group["lr"] for group in optimizer.param_groups] == [1e-2, 1e-4, 1e-4, 1e-4, 1e-4]

    def train():
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        return len(optimizer.state)

    assert train() == 2
    stages.advance()
    assert train() == 4


def test_stages_can_be_named():
    model, _, stages = unfreezing(stages=[("layers.*", "embed"), "head"])
    assert len(stages.advance()) == 8
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_checkpoint_restores_the_stage_and_the_optimizer(tmp_path):
    model, optimizer, stages = unfreezing()
    stages.advance()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    checkpoints = legroom.Checkpoints(tmp_path)
    checkpoints.track(model=model, optimizer=optimizer, unfreezing=stages)
    checkpoints.save(1)
    other, other_optimizer, other_stages = unfreezing()
    checkpoints.track(model=other, optimizer=other_optimizer, unfreezing=other_stages)
    checkpoints.resume()
    assert other_stages.stage == 1
    assert trainable(other) == trainable(model)
    assert torch.equal(
        other_optimizer.state[other.layers[2].weight]["exp_avg"],
        optimizer.state[model.layers[2].weight]["exp_avg"],
    )
