"""What cannot be split is refused before training, each with its reason in one sentence."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler as lr

from netsplit.errors import ConfigError
from netsplit.graph import capture
from netsplit.optim.learning_rate import LearningRate, learning_rate, warmup_cosine
from netsplit.optim.optimizers import ParameterGroups, for_model, make_optimizer
from netsplit.profile.measure.optimizer import check_idle, check_optimizer, optimizer_alpha


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.last = nn.Linear(8, 3)


MODEL = Net()


class NormCoupled(optim.SGD):
    """Divides by the norm of all its gradients together."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        every = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in every]).norm()
        for p in every:
            p.data.sub_(p.grad / norm, alpha=0.1)


class Distance(optim.SGD):
    """One step length for all, found from how far all went, as Prodigy and D-Adaptation find theirs."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        every = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        self.length = getattr(self, "length", 1e-3) + 1e-4 * sum(float(p.grad.abs().sum()) for p in every)
        for p in every:
            p.data.sub_(p.grad, alpha=self.length)


class Noisy(optim.SGD):
    """Langevin dynamics: draws one number after another for all parameters."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(torch.randn_like(p))


class LateNorm(optim.SGD):
    """Clips by the norm of all from its seventh step on."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps > 6:
            nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.1)
        super().step(closure)


class Lookahead(optim.SGD):
    """Keeps slow weights in a list beside the groups."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.slow = [p.detach().clone() for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for p, slow in zip(self.param_groups[0]["params"], self.slow, strict=False):
            p.copy_(slow.add_(p - slow, alpha=0.5))


def misspelt(parameters: Any) -> optim.Optimizer:
    return optim.SGD(parameters, lr=0.1, momentun=0.9)  # type: ignore[call-arg]


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "closes over the model": (
        lambda _: optim.SGD(MODEL.parameters(), lr=0.1),
        "optimizer SGD has parameters that it was not given .6 of them",
    ),
    "drops some": (
        lambda parameters: optim.SGD([p for p in parameters if p.ndim > 1], lr=0.1),
        r"leaves out parameter 'first.bias' and 3 more: .*requires_grad_\(False\)",
    ),
    "adds others": (
        lambda parameters: optim.SGD([*parameters, nn.Parameter(torch.ones(2))], lr=0.1),
        "has parameters that it was not given .1 of them",
    ),
    "a list": (
        lambda parameters: [optim.SGD(parameters[:1], lr=0.1), optim.SGD(parameters[1:], lr=0.1)],
        "makes 2 optimisers, and a device steps one",
    ),
    "a mapping": (lambda parameters: {"a": optim.SGD(parameters, lr=0.1)}, "makes 1 optimisers"),
    "nothing": (lambda parameters: None, "makes a NoneType, which is no torch.optim.Optimizer"),
    "a closure": (optim.LBFGS, "cannot take a step without a closure"),
    "sparse": (optim.SparseAdam, "does not support dense gradients"),
    "matrices only": (partial(optim.Muon, lr=0.1), "only supports 2D parameters"),
    "a norm of all": (partial(NormCoupled, lr=0.1), "NormCoupled steps on a parameter otherwise when others"),
    "a distance of all": (partial(Distance, lr=0.1), "Distance steps on a parameter otherwise when others"),
    "a norm of all, later": (LateNorm, "LateNorm steps on a parameter otherwise when others"),
    "tensors by position": (
        Lookahead,
        r"Lookahead keeps tensors of all parameters in 'slow'.*at .*optimizer_checks.py:\d+ .*self.state",
    ),
    "values": (
        lambda ps: optim.SGD(ps, lr=0.1 / float(sum(p.detach().norm() for p in ps))),
        "goes by the values of parameters when it is made at .*test_optimizer_checks.py",
    ),
    "values in a tensor": (
        lambda ps: optim.SGD(ps, lr=sum(p.detach().norm() for p in ps)),
        "goes by the values of parameters when it is made",
    ),
    "noise": (partial(Noisy, lr=0.1), "Noisy steps on a parameter otherwise when others"),
    "a bad value": (partial(optim.AdamW, lr=-1.0), "Invalid learning rate: -1.0"),
    "a bad setting": (misspelt, "momentun"),
    "a name that is not there": (
        lambda named_parameters: optim.SGD([dict(named_parameters)["head"]], lr=0.1),
        "optimizer cannot be made",
    ),
    "a pattern that matches nothing": (
        ParameterGroups(optim.SGD, lr=0.1, groups=[{"match": ["*bias", "*.beta"], "lr": 0.2}]),
        r"matches '\*.beta', and no trainable parameter of the model is called so.*first.bias",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_true_reason(name: str) -> None:
    factory, words = REFUSED[name]
    with pytest.raises(ConfigError, match=words) as e:
        check_optimizer(for_model(factory, MODEL))
    assert "\n" not in str(e.value)
    assert str(e.value).endswith((".", ").", ")"))


@pytest.mark.parametrize("name", ["closes over the model", "drops some", "a list"])
def test_refused_on_the_devices_too(name: str) -> None:
    factory, words = REFUSED[name]
    own = {k: nn.Parameter(p.detach().clone()) for k, p in MODEL.named_parameters() if k.startswith("first")}
    with pytest.raises(ConfigError, match=words):
        make_optimizer(for_model(factory, MODEL), own)


@pytest.mark.parametrize(
    "factory",
    [
        optim.Adadelta, optim.Adafactor, optim.Adagrad, optim.Adam, optim.AdamW, optim.Adamax, optim.ASGD,
        optim.NAdam, optim.RAdam, optim.RMSprop, optim.Rprop, optim.SGD,
        partial(optim.Adam, fused=True), partial(optim.AdamW, foreach=True),
    ],
)  # fmt: skip
def test_torchs_other_optimisers_step_on_each_parameter_by_itself(factory: Any) -> None:
    check_optimizer(for_model(factory, MODEL))
    check_optimizer(factory)


def test_muon_steps_on_each_matrix_by_itself() -> None:
    check_optimizer(for_model(partial(optim.Muon, lr=0.1), nn.Sequential(nn.Linear(4, 5, bias=False))))


class Shrinking(optim.SGD):
    """Moves what has no gradient, too."""

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(0.9)
        return super().step(closure)


def test_an_optimiser_that_moves_what_no_device_has_is_refused() -> None:
    model = nn.Linear(6, 3)
    model.unused = nn.Parameter(torch.ones(3))
    graph = capture(model, nn.CrossEntropyLoss(), (torch.randn(2, 6), torch.tensor([0, 1])))
    check_idle(for_model(optim.AdamW, model), graph)
    shrinking = for_model(partial(Shrinking, lr=0.1), model)
    with pytest.raises(ConfigError, match="does not use 'unused'"):
        check_idle(shrinking, graph)
    model.unused.requires_grad_(False)
    check_idle(for_model(partial(Shrinking, lr=0.1), model), graph)


def test_frozen_parameters_are_not_given_and_tied_ones_once() -> None:
    model = Net()
    model.first.bias.requires_grad_(False)
    model.other = model.last
    names = list(for_model(optim.SGD, model, nn.Linear(2, 2)).parameters)
    assert names == [
        "first.weight", "norm.weight", "norm.bias", "last.weight", "last.bias", "loss.weight", "loss.bias",
    ]  # fmt: skip


def by_attribute(parameters: list[Any]) -> optim.Optimizer:
    plain = [p for p in parameters if not getattr(p, "no_decay", False)]
    others = [p for p in parameters if getattr(p, "no_decay", False)]
    return optim.AdamW([{"params": plain}, {"params": others, "weight_decay": 0.0}])


def test_a_factory_may_go_by_attributes_of_parameters() -> None:
    model = Net()
    for p in (model.norm.weight, model.last.bias):
        p.no_decay = True  # type: ignore[attr-defined]
    factory = for_model(by_attribute, model)
    check_optimizer(factory)
    own = {"last.bias": nn.Parameter(torch.ones(3))}
    assert make_optimizer(factory, own).groups[1] == ("norm.weight", "last.bias")
    assert pickle.loads(pickle.dumps(factory)).attributes == factory.attributes


def test_an_attribute_that_cannot_be_sent_is_refused_where_it_is_used() -> None:
    model = Net()
    model.last.bias.no_decay = model  # type: ignore[attr-defined]
    check_optimizer(for_model(partial(optim.SGD, lr=0.1), model))
    factory = pickle.loads(pickle.dumps(for_model(by_attribute, model)))
    with pytest.raises(
        ConfigError, match=r"goes by 'no_decay' of parameter 'last.bias', which cannot be sent"
    ):
        check_optimizer(factory)


def test_alpha_is_of_the_group_that_keeps_most() -> None:
    groups = [{"match": ["*weight"], "momentum": 0.9}]
    factory = for_model(ParameterGroups(optim.SGD, lr=0.1, groups=groups), MODEL)
    assert optimizer_alpha(factory) == 3
    assert optimizer_alpha(for_model(optim.Adafactor, MODEL)) == 2  # matrices are factored
    assert optimizer_alpha(for_model(optim.AdamW, MODEL)) == 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr": 0.1, "momentun": 0.9}, "optimizer.momentun is not a parameter of SGD: did you mean momentum"),
        ({"groups": [{"lr": 0.1}]}, r"optimizer.groups\[0\] is .*: give 'match'"),
        ({"groups": [{"match": ["*"]}]}, r"optimizer.groups\[0\] is .*: give 'match'"),
        ({"groups": [{"match": ["*"], "rate": 1}]}, r"optimizer.groups\[0\].rate is not a parameter of SGD"),
        ({"params": []}, "optimizer.params is set by the program"),
    ],
)
def test_groups_say_what_is_wrong_with_them(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ParameterGroups("torch.optim.SGD", **settings)


# --- learning rates -----------------------------------------------------------------------------------

OTHER = optim.SGD(MODEL.parameters(), lr=0.1)
RATES_REFUSED: dict[str, tuple[Any, str]] = {
    "of another optimiser": (lambda _: lr.StepLR(OTHER, 3), "StepLR is of another optimiser than the one"),
    "a part of another": (
        lambda o: lr.SequentialLR(o, [lr.StepLR(o, 3), lr.StepLR(o, 3)], [1]) and lr.ConstantLR(OTHER),
        "ConstantLR is of another optimiser",
    ),
    "none": (lambda optimizer: optimizer, "makes a SGD, which is no torch.optim.lr_scheduler.LRScheduler"),
    "plateau every step": (lr.ReduceLROnPlateau, "goes by the loss of an epoch"),
    "two groups": (lambda o: lr.LambdaLR(o, [lambda i: 1.0] * 2), "Expected 1 lr_lambdas, but got 2"),
    "bad value": (partial(lr.OneCycleLR, max_lr=0.1, total_steps=-1), "scheduler cannot be made of"),
    "values of parameters": (
        lambda o: lr.LambdaLR(o, lambda _: float(sum(p.norm() for p in o.param_groups[0]["params"]))),
        "goes by values of parameters at .*test_optimizer_checks.py",
    ),
    "gradients, later": (
        lambda o: lr.LambdaLR(o, lambda i: 1.0 if i < 8 else float(o.param_groups[0]["params"][0].grad)),
        "goes by values of parameters",
    ),
    "state": (
        lambda o: lr.LambdaLR(o, lambda i: 1.0 / (1 + len([s for s in o.state.values() if s]))),
        "goes by the optimiser's state",
    ),
    "of unknown length": (
        LearningRate(lr.CosineAnnealingLR, T_max="all"),
        "scheduler.T_max is 'all', of a training of unknown length",
    ),
}


@pytest.mark.parametrize("name", RATES_REFUSED)
def test_a_scheduler_is_refused_with_the_true_reason(name: str) -> None:
    given, words = RATES_REFUSED[name]
    rate = learning_rate(given)
    assert rate is not None
    with pytest.raises(ConfigError, match=words) as e:
        rate.check(for_model(partial(optim.SGD, lr=0.1, momentum=0.9), MODEL))
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": "batch"}, "scheduler.every is 'batch': give one of step, epoch"),
        ({"gama": 0.1}, "scheduler.gama is not a parameter of StepLR: did you mean gamma"),
        ({}, "scheduler.step_size must be given"),
    ],
)
def test_a_setting_of_a_scheduler_is_refused(options: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LearningRate("torch.optim.lr_scheduler.StepLR", **options)


def test_warmup_is_shorter_than_all() -> None:
    with pytest.raises(ConfigError, match=r"scheduler\.warmup is 5 of 5 steps"):
        warmup_cosine(OTHER, 5, 5)


def test_all_is_how_often_a_training_steps() -> None:
    for every, steps in (("step", 15), ("epoch", 3)):
        rate = LearningRate(lr.CosineAnnealingLR, every, T_max="all")  # type: ignore[arg-type]
        assert rate.over(3, 5).settings == {"T_max": steps}


def test_a_scheduler_that_ends_before_the_training_is_refused() -> None:
    optimizer = for_model(partial(optim.SGD, lr=0.1, momentum=0.9), MODEL)
    rate = LearningRate(lr.OneCycleLR, max_lr=0.1, total_steps=10)
    rate.check_steps(optimizer, 10)
    with pytest.raises(ConfigError, match=r"OneCycleLR ends after 10 steps, and the training has 11"):
        rate.check_steps(optimizer, 11)
