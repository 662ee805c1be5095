"""Transfer learning: what is frozen stays as it was and costs nothing, and the head is where each library has it."""

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


def trained(model):
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


# ------------------------------------------------------------ freezing


@pytest.mark.parametrize(
    ("except_", "left"),
    [
        ("fc", ["fc.weight", "fc.bias"]),
        (("fc.bias", "body.3"), ["body.3.weight", "body.3.bias", "fc.bias"]),
        ("*.bias", ["body.0.bias", "body.1.bias", "body.3.bias", "body.4.bias", "fc.bias"]),
        ((), []),
    ],
)
def test_all_but_the_named_is_frozen(except_, left):
    model = Net()
    transfer.freeze(model, except_=except_)
    assert trained(model) == left


def test_a_name_that_fits_nothing_gets_the_nearest():
    with pytest.raises(UsageError, match="no parameter of the model is called 'fcc': did you mean 'fc'?"):
        transfer.freeze(Net(), except_="fcc")
    with pytest.raises(UsageError, match="no parameter of the model is called 'zzz': the model has body, fc"):
        transfer.freeze(Net(), except_="zzz")


def test_frozen_gradients_are_given_back():
    model = Net()
    model(torch.randn(2, 3, 4, 4)).sum().backward()
    transfer.freeze(model, except_="fc")
    assert [name for name, parameter in model.named_parameters() if parameter.grad is not None] == [
        "fc.weight",
        "fc.bias",
    ]


def step(model):
    model.train()
    model(torch.randn(4, 3, 5, 5) * 9 + 4).sum().backward()


def test_statistics_of_frozen_normalisation_stay_whatever_train_says():
    model = Net()
    transfer.freeze(model, except_="fc")
    before = model.body[1].running_mean.clone()
    step(model)
    assert torch.equal(model.body[1].running_mean, before)


def test_normalisation_that_is_trained_goes_on_learning():
    model = Net()
    transfer.freeze(model, except_=("fc", "body.4"))
    before = model.body[4].running_mean.clone()
    step(model)
    assert not torch.equal(model.body[4].running_mean, before)


def test_normalisation_without_parameters_follows_what_is_around_it():
    model = Net(norm=lambda channels: nn.BatchNorm2d(channels, affine=False))
    transfer.freeze(model, except_="fc")
    before = model.body[1].running_mean.clone()
    step(model)
    assert torch.equal(model.body[1].running_mean, before)


def test_unfreezing_lets_normalisation_learn_again():
    model = Net().train()
    transfer.freeze(model, except_="fc")
    assert transfer.unfreeze(model, "body.1") == ["body.1.weight", "body.1.bias"]
    assert (model.body[1].training, model.body[4].training) == (True, False)
    before = model.body[1].running_mean.clone()
    step(model)
    assert not torch.equal(model.body[1].running_mean, before)
    transfer.unfreeze(model)
    assert len(trained(model)) == 10


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_frozen_model_is_frozen_as_well(copied):
    model = Net()
    transfer.freeze(model, except_="fc")
    twin = copied(model)
    before = twin.body[1].running_mean.clone()
    step(twin)
    assert torch.equal(twin.body[1].running_mean, before)
    assert trained(twin) == ["fc.weight", "fc.bias"]


def test_what_freezing_saves_is_told():
    model = Net()
    frozen = transfer.freeze(model, except_="fc")
    size = sum(parameter.nbytes for parameter in model.body.parameters())
    assert (frozen.gradients, frozen.optimizer_state, frozen.normalisations) == (size, 2 * size, 2)
    assert frozen.saved == 3 * size
    assert str(frozen) == (
        "840 of 930 parameters are frozen (90.3%). Saved: 3.3 KiB of gradients and 6.6 KiB of Adam's state; "
        "give batch= to have the activations counted too."
    )


def test_the_saving_that_is_predicted_is_what_a_virtual_gpu_sees():
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
        transfer.freeze(net, except_="12")
        return net

    told = transfer.freeze(
        model(), except_="12", batch=(torch.randn(512, 256), torch.zeros(512, dtype=torch.long))
    )
    measured = peak(model) - peak(frozen_model)
    assert told.saved == pytest.approx(measured, rel=0.05)
    assert "A step should need" in str(told)


# ------------------------------------------------------------ groups


def test_frozen_parameters_are_left_out_of_the_optimizer():
    model = Net()
    transfer.freeze(model, except_=("fc", "body.3"))
    groups = transfer.param_groups(model, {"fc": {"lr": 0.1}, "*.bias": {"weight_decay": 0.0}}, lr=0.01)
    assert groups == [
        {"params": list(model.fc.parameters()), "lr": 0.1},
        {"params": [model.body[3].bias], "lr": 0.01, "weight_decay": 0.0},
        {"params": [model.body[3].weight], "lr": 0.01},
    ]
    torch.optim.AdamW(groups)


def test_nothing_to_train_is_told():
    model = Net()
    transfer.freeze(model)
    with pytest.raises(UsageError, match="every parameter of the model is frozen"):
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
def test_heads_are_where_torchvision_has_them(make, head):
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

        def reset_classifier(self, classes):
            self.head["fc"] = nn.Linear(4, classes)

    model = LikeTimm()
    assert transfer.replace_head(model, 5) == ("head.fc",)
    assert model.head["fc"].out_features == 5


def test_a_transformers_model_counts_its_new_classes():
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
        told = outputs(model, torch.ones(3, 4, dtype=torch.long))
        assert told.logits.shape == (3, 5)
        assert (model.config.num_labels, model.num_labels, len(model.config.id2label)) == (5, 5, 5)
        labelled = model(torch.ones(3, 4, dtype=torch.long), labels=torch.tensor([0, 1, 4]))
        assert labelled.loss.isfinite()


def test_a_transformers_model_without_a_head_is_told_what_to_load():
    from transformers import BertConfig, BertModel

    model = BertModel(
        BertConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=50
        )
    )
    with pytest.raises(UsageError, match=r"BertModel has no classification head: .*num_labels=5"):
        transfer.replace_head(model, 5)


@pytest.mark.parametrize(
    ("model", "classes", "told"),
    [
        (
            nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)),
            3,
            r"last layer is no linear one \(1 is a LayerNorm\)",
        ),
        (nn.Sequential(nn.Conv2d(2, 2, 3)), 3, "no head to replace"),
        (nn.ReLU(), 3, "no head to replace"),
        (nn.Linear(2, 2), 3, "a single layer"),
        (nn.Sequential(nn.Linear(2, 2)), 0, "classes=0 is no number of classes"),
        ("resnet18", 3, "needs a model, an nn.Module; it got a str"),
    ],
)
def test_what_has_no_head_is_told(model, classes, told):
    with pytest.raises(UsageError, match=told):
        transfer.replace_head(model, classes)


def test_a_head_that_shares_its_weights_is_left():
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
    transfer.freeze(model, except_="head")
    optimizer = torch.optim.AdamW(transfer.param_groups(model, lr=1e-2))
    return model, optimizer, transfer.GradualUnfreezing(model, optimizer, lr=1e-4, **options)


def test_blocks_come_from_the_end():
    model = Stack()
    transfer.freeze(model, except_="head")
    assert transfer.blocks(model) == [("layers.2",), ("layers.1",), ("layers.0",), ("embed",)]


def test_small_parts_are_unfrozen_with_their_neighbour():
    model = nn.Sequential(
        nn.LayerNorm(100), nn.Linear(100, 100), nn.LayerNorm(100), nn.Linear(100, 100), nn.Linear(100, 1)
    )
    assert transfer.blocks(model) == [("4", "3"), ("2", "1", "0")]


def test_a_stack_inside_a_part_is_taken_apart():
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


def test_one_stage_more_every_few_epochs():
    model, _, stages = unfreezing(every=2)
    story = [(epoch, stages.at(epoch)) for epoch in range(5)]
    assert story == [
        (0, []),
        (1, []),
        (2, ["layers.2.weight", "layers.2.bias"]),
        (3, []),
        (4, ["layers.1.weight", "layers.1.bias"]),
    ]
    assert trained(model)[0] == "layers.1.weight"


def test_a_stage_is_trained_with_its_own_rate_and_costs_nothing_before():
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


def test_a_checkpoint_brings_the_stage_and_the_optimizer_back(tmp_path):
    model, optimizer, stages = unfreezing()
    stages.advance()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    checkpoints = legroom.Checkpoints(tmp_path)
    checkpoints.track(model=model, optimizer=optimizer, unfreezing=stages)
    checkpoints.save(1)
    again, its_optimizer, its_stages = unfreezing()
    checkpoints.track(model=again, optimizer=its_optimizer, unfreezing=its_stages)
    checkpoints.resume()
    assert its_stages.stage == 1
    assert trained(again) == trained(model)
    assert torch.equal(
        its_optimizer.state[again.layers[2].weight]["exp_avg"],
        optimizer.state[model.layers[2].weight]["exp_avg"],
    )
