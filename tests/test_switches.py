"""The optimisations change no result: with plain code in place of each, two updates give the same parameters."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

# Benchmarks are scripts: their folder is on the path when they run.
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import setups
from setups import sac
from switches import SWITCHES, Plain, Switch, switched_off

from mcurl_torchrl import MaskedContrastiveLoss
from mcurl_torchrl.modules import MomentumCopy, encoders
from mcurl_torchrl.transforms import crops

pytestmark = pytest.mark.usefixtures("one_thread")

LEARNERS = {
    "sac mcurl": ("sac", "env=cartpole-swingup", "preset=smoke", "algo=mcurl"),
    "rainbow mcurl": ("rainbow", "env=RoadRunner", "preset=smoke", "algo=mcurl"),
    "rainbow curl": ("rainbow", "env=RoadRunner", "preset=smoke", "algo=curl"),
}
COMPUTING = {name: switch for name, switch in SWITCHES.items() if name != "allocator"}  # which computes nothing

# By how much of a learning rate, which is about what Adam moves a parameter by, results may differ. Another order of
# sums gives other last digits: 1e-16 of a gradient in float64, 1e-7 in float32. Adam divides a gradient by its size and
# eps, so where it is zero but for rounding (that of the attention's key bias is) the difference is rounding / eps: with
# SAC's eps of 1e-8 up to 1e-8 in float64, and anything in float32. So in float32 SAC's Adam gets Rainbow's eps here.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2}
RAINBOWS_EPS = 1.5e-4


@contextlib.contextmanager
def precision(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        if dtype == torch.float64:
            yield
        else:
            with mock.patch.object(sac, "Adam", functools.partial(torch.optim.Adam, eps=RAINBOWS_EPS)):
                yield
    finally:
        torch.set_default_dtype(torch.float32)


def two_updates(learner: str) -> tuple[dict[str, Tensor], dict[str, Tensor], float]:
    """Returns the parameters before and after, and the learning rate."""
    made = setups.make_learner(*LEARNERS[learner], rows=60)
    generator = torch.Generator().manual_seed(1)
    for network in made.networks:  # biases of zero, norms of one and targets that are equal would hide mistakes
        for value in network.parameters():
            if value.requires_grad:
                value.data.add_(0.1 * torch.randn(value.shape, generator=generator))
    before = {name: value.clone() for name, value in made.parameters().items()}
    for _ in range(2):  # the first with an actor step and moving targets, the second without
        made.step()
    return before, made.parameters(), (made.cfg.sac if learner.startswith("sac") else made.cfg.rainbow).lr


@functools.cache
def optimised(learner: str, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor], float]:
    with precision(dtype):
        return two_updates(learner)


def compare(learner: str, dtype: torch.dtype, off: contextlib.AbstractContextManager[None]) -> None:
    """Checks that two updates end where they do with all optimisations on."""
    before, after, lr = optimised(learner, dtype)
    with precision(dtype), off:
        before_plain, after_plain, _ = two_updates(learner)
    assert before.keys() == before_plain.keys() == after.keys() == after_plain.keys()
    for name, value in after.items():
        torch.testing.assert_close(before_plain[name], before[name], rtol=0, atol=0, msg=f"{name} begins otherwise")
        difference = (after_plain[name] - value).abs().max()
        assert difference <= TOLERANCE[dtype] * lr, f"{name} differs by {difference / lr:.1e} learning rates"


def cases() -> list[Any]:
    return [
        pytest.param(learner, names, id=f"{learner}-{label}")
        for learner in LEARNERS
        for label, names in {**{name: (name,) for name in COMPUTING}, "all": tuple(COMPUTING)}.items()
        if label == "all" or learner in SWITCHES[label].learners
    ]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("learner", "names"), cases())
def test_nothing_changes(learner: str, names: tuple[str, ...], dtype: torch.dtype) -> None:
    compare(learner, dtype, switched_off(*names))


@pytest.mark.parametrize("learner", LEARNERS)
def test_something_moves(learner: str) -> None:
    before, after, lr = optimised(learner, torch.float64)
    still = [name for name, value in after.items() if value.ndim and torch.equal(value, before[name])]
    # Rainbow's target network stands still between copies, as do noise between agent steps and the returns of atoms.
    assert not [
        name for name in still if not any(word in name for word in ("target_value_network", "noise", "support"))
    ]
    moved = max((value - before[name]).abs().max() for name, value in after.items())
    assert moved > lr


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("name", COMPUTING)
def test_plain_ways_are_taken(learner: str, name: str) -> None:
    """Every learner that is said to have an optimisation calls what was put in its place; no other does."""
    calls = []

    def counted(plain: Plain) -> Callable[..., Any]:
        function = getattr(plain.owner, plain.name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(plain.name)
            return function(*args, **kwargs)

        return call

    with SWITCHES[name].off(), contextlib.ExitStack() as stack:
        for plain in SWITCHES[name].plain:
            stack.enter_context(mock.patch.object(plain.owner, plain.name, counted(plain)))
        two_updates(learner)
    assert bool(calls) == (learner in SWITCHES[name].learners)


def test_switches_leave_no_trace() -> None:
    before = [getattr(plain.owner, plain.name) for switch in SWITCHES.values() for plain in switch.plain]
    with switched_off(*SWITCHES):
        inside = [getattr(plain.owner, plain.name) for switch in SWITCHES.values() for plain in switch.plain]
    after = [getattr(plain.owner, plain.name) for switch in SWITCHES.values() for plain in switch.plain]
    assert after == before
    assert all(now is not then for now, then in zip(inside, before, strict=True))


# -- these tests can fail ----------------------------------------------------------------------------------------------


def one_pixel_off(crop: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda images, top, left, size: crop(images.roll(1, -1), top, left, size)


def rows_for_columns(shift: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda images, top, left, size, padding, down, right: shift(images, top, left, size, padding, right, down)


def divided_by_256(features: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda self, pixels: features(self, pixels.to(self.dtype) / 256)


def a_little_faster(step: Callable[..., None]) -> Callable[..., None]:
    def move(self: MomentumCopy) -> None:
        with mock.patch.object(self, "tau", 1.001 * self.tau):
            step(self)

    return move


def the_others_zeroed(encode: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda self, pixels, zeroed: encode(self, pixels, zeroed.roll(1))


def another_momentum(make_adam: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, betas, **kwargs: make_adam(*args, betas=(0.8, betas[1]), **kwargs)


WRONG = [
    ("sac mcurl", Plain(crops, "crop", one_pixel_off)),
    ("rainbow mcurl", Plain(crops, "shift", rows_for_columns)),
    ("rainbow curl", Plain(crops, "shift", rows_for_columns)),
    ("sac mcurl", Plain(encoders._ConvEncoder, "features", divided_by_256)),
    ("rainbow curl", Plain(encoders._ConvEncoder, "features", divided_by_256)),
    ("sac mcurl", Plain(MomentumCopy, "step", a_little_faster)),
    ("sac mcurl", Plain(MaskedContrastiveLoss, "_encode_queries", the_others_zeroed)),
    ("rainbow mcurl", Plain(MaskedContrastiveLoss, "_encode_queries", the_others_zeroed)),
    ("sac mcurl", Plain(sac, "Adam", another_momentum)),
]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("learner", "plain"), WRONG, ids=lambda value: getattr(value, "make", value))
def test_a_wrong_way_is_noticed(learner: str, plain: Plain, dtype: torch.dtype) -> None:
    with pytest.raises(AssertionError, match="differs by"):
        compare(learner, dtype, Switch("wrong", "wrong", (plain,)).off())
