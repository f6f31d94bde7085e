"""TorchRL's requirements for losses, tested on each of ours. A new loss needs a line in CASES."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.objectives import HardUpdate, SoftUpdate, ValueEstimators
from torchrl.objectives.common import LossModule

import mcurl_torchrl
from mcurl_torchrl import CategoricalDQNLoss, ContextTransformer, ContrastiveLoss, MaskedContrastiveLoss, PixelEncoder
from mcurl_torchrl.modules import RainbowPolicy
from mcurl_torchrl.objectives import ExpectedDQNLoss
from tests.contract.public_classes import public_classes

PIXELS = (1, 25, 25)  # one channel: the hardest for a call that has to find the batch dimensions
MASK = ("collector", "mask")


@dataclasses.dataclass(frozen=True)
class Case:
    """How a loss is made, and a batch for it."""

    make: Callable[..., LossModule]
    make_batch: Callable[[], TensorDict]
    loss: str  # its differentiable output
    networks: tuple[str, ...]
    has_value_estimator: bool = False


def images(*lead: int) -> Tensor:
    return torch.randint(256, (*lead, *PIXELS), dtype=torch.uint8)


def make_encoder() -> PixelEncoder:
    return PixelEncoder(1, 25, num_layers=2, num_filters=4, feature_dim=8)


def make_views(*lead: int) -> TensorDict:
    torch.manual_seed(1)
    masked = torch.arange(torch.Size(lead).numel()).reshape(lead) % 3 != 1
    flags = {"masked": masked} if len(lead) == 2 else {}
    return TensorDict({"mcurl": {"query_pixels": images(*lead), "key_pixels": images(*lead), **flags}}, lead)


def make_transitions() -> TensorDict:
    torch.manual_seed(1)
    following = {"pixels": images(6), "reward": torch.randn(6, 1), "terminated": torch.arange(6)[:, None] % 3 == 0}
    return TensorDict({"pixels": images(6), "action": torch.randint(3, (6, 1)), "next": following}, [6])


def make_network() -> nn.Module:
    return RainbowPolicy(PIXELS, 3, hidden_dim=8, num_atoms=5).network


def masked(**options: Any) -> LossModule:
    return MaskedContrastiveLoss(make_encoder(), ContextTransformer(8, dropout=0.0), **options)


CASES = {
    "CategoricalDQNLoss": Case(
        lambda **options: CategoricalDQNLoss(make_network(), **options),
        make_transitions,
        "loss_value",
        ("value_network",),
        True,
    ),
    "ContrastiveLoss": Case(
        lambda **options: ContrastiveLoss(make_encoder(), latent_dim=8, **options),
        lambda: make_views(6),
        "loss_contrastive",
        ("encoder_network",),
    ),
    "ExpectedDQNLoss": Case(
        lambda **options: ExpectedDQNLoss(make_network(), **options),
        make_transitions,
        "loss_value",
        ("value_network",),
        True,
    ),
    "MaskedContrastiveLoss": Case(
        lambda **options: masked(key_context=True, **options),
        lambda: make_views(3, 6),
        "loss_contrastive",
        ("encoder_network", "context_network"),
    ),
}
EVERYWHERE = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
WITH_VALUES = pytest.mark.parametrize(
    "case", [c for c in CASES.values() if c.has_value_estimator], ids=[n for n in CASES if CASES[n].has_value_estimator]
)


def make(case: Case, **options: Any) -> LossModule:
    torch.manual_seed(2)
    loss = case.make(**options)
    loss.update_target(0.5)  # the copies are equal so far: it only tells that somebody moves them
    return loss


def keywords(loss: LossModule, batch: TensorDict) -> dict[str, Tensor]:
    named = [(key, key if isinstance(key, str) else "_".join(key)) for key in loss.in_keys]
    return {name: batch[key] for key, name in named}


def gradients(loss: LossModule, value: Tensor) -> list[Tensor]:
    parameters = list(loss.parameters())
    found = torch.autograd.grad(value, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def pad(batch: TensorDict, length: int = 4) -> TensorDict:
    """Marks all but the first positions as padding."""
    valid = torch.zeros(batch.shape, dtype=torch.bool)
    valid[..., :length] = True
    return batch.copy().set(MASK, valid.unsqueeze(-1))


def test_no_loss_is_left_out() -> None:
    assert public_classes(LossModule, mcurl_torchrl, mcurl_torchrl.objectives) == set(CASES)


@EVERYWHERE
class TestKeys:
    def test_every_in_key_is_needed(self, case: Case) -> None:
        loss = make(case)
        for key in loss.in_keys:
            batch = case.make_batch()
            del batch[key]
            last = key if isinstance(key, str) else key[-1]
            with pytest.raises(KeyError, match=f"{type(loss).__name__} needs .*{last}.*the tensordict has"):
                loss(batch)

    def test_out_keys_are_what_comes_out(self, case: Case) -> None:
        loss = make(case)
        out = loss(case.make_batch())
        assert set(out.keys()) == set(loss.out_keys) and case.loss in loss.out_keys
        assert [key for key in loss.out_keys if key.startswith("loss")] == [case.loss], "trainers sum what is named so"
        assert [key for key, value in out.items() if value.requires_grad] == [case.loss]
        assert out.shape == () and all(value.shape == () for value in out.values())

    def test_set_keys(self, case: Case) -> None:
        loss, batch = make(case), case.make_batch()
        expected, before = loss(batch.copy()), list(loss.in_keys)
        names = [field.name for field in dataclasses.fields(loss.default_keys)]
        moved = batch.copy()
        for name in names:
            key = getattr(loss.tensor_keys, name)
            loss.set_keys(**{name: ("mine", name)})
            for lead in ((), ("next",)):
                old = (*lead, *(key if isinstance(key, tuple) else (key,)))
                if moved.get(old, None) is not None:
                    moved.rename_key_(old, (*lead, "mine", name))
        assert not set(loss.in_keys) & set(before)
        torch.testing.assert_close(loss(moved), expected)
        loss.set_keys(**dict.fromkeys(names))
        assert loss.in_keys == before
        with pytest.raises(ValueError, match="not an accepted tensordict key"):
            loss.set_keys(nothing="x")

    def test_keywords_and_positions(self, case: Case) -> None:
        loss, batch = make(case), case.make_batch()
        given, expected = keywords(loss, batch), loss(batch.copy())
        for out in (loss(**given), loss(*given.values())):
            assert len(out) == len(loss.out_keys)
            for name, value in zip(loss.out_keys, out, strict=True):
                torch.testing.assert_close(value, expected[name])

    def test_select_out_keys(self, case: Case) -> None:
        loss, batch = make(case), case.make_batch()
        expected, every = loss(batch.copy())[case.loss], list(loss.out_keys)
        loss.select_out_keys(case.loss)
        out = loss(batch.copy())
        assert set(out.keys()) == {case.loss} == set(loss.out_keys)
        torch.testing.assert_close(out[case.loss], expected)
        torch.testing.assert_close(loss(**keywords(loss, batch)), expected)
        loss.reset_out_keys()
        assert loss.out_keys == every and set(loss(batch.copy()).keys()) == set(every)
        with pytest.raises(ValueError, match="nothing"):
            loss.select_out_keys("nothing")


@EVERYWHERE
class TestReduction:
    def test_none_mean_and_sum(self, case: Case) -> None:
        batch = case.make_batch()
        each = make(case, reduction="none")(batch.copy())[case.loss]
        assert each.shape == batch.shape
        counted = (each != 0).sum()
        torch.testing.assert_close(make(case, reduction="sum")(batch.copy())[case.loss], each.sum())
        torch.testing.assert_close(make(case, reduction="mean")(batch.copy())[case.loss], each.sum() / counted)
        torch.testing.assert_close(make(case)(batch.copy())[case.loss], each.sum() / counted)

    def test_no_reduction_is_the_mean(self, case: Case) -> None:
        assert make(case, reduction=None).reduction == "mean"

    def test_another_one_is_refused(self, case: Case) -> None:
        with pytest.raises(ValueError, match=r"reduction='max'; choose one of \['mean', 'sum', 'none'\]"):
            make(case, reduction="max")


@EVERYWHERE
class TestPadding:
    @pytest.mark.usefixtures("double_precision")  # another number of rows is summed in another order
    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    def test_it_is_as_if_padding_were_not_there(self, case: Case, reduction: str) -> None:
        loss, batch = make(case, reduction=reduction), case.make_batch()
        expected, found = loss(batch[..., :4].copy()), loss(pad(batch))
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(gradients(loss, found[case.loss]), gradients(loss, expected[case.loss]))

    def test_each_position(self, case: Case) -> None:
        loss, batch = make(case, reduction="none"), case.make_batch()
        found = loss(pad(batch))[case.loss]
        assert found.shape == batch.shape and (found[..., 4:] == 0).all()
        torch.testing.assert_close(found[..., :4], loss(batch[..., :4].copy())[case.loss])

    def test_which_mask_is_read(self, case: Case) -> None:
        loss, batch = make(case), case.make_batch()
        whole, part = loss(batch.copy()), loss(batch[..., :4].copy())
        named = pad(batch).rename_key_(MASK, ("mine", "valid"))
        torch.testing.assert_close(loss(named.copy()), whole)
        loss.loss_mask_key = ("mine", "valid")
        torch.testing.assert_close(loss(named.copy()), part)
        torch.testing.assert_close(loss(pad(batch)), whole)  # a mask of another name is not read
        loss.loss_mask_key = None
        torch.testing.assert_close(loss(pad(batch)), whole)
        loss.loss_mask_key = "auto"
        both = pad(batch, 5).set("shifted_valid", pad(batch)[MASK])
        torch.testing.assert_close(loss(both), part)

    def test_nothing_but_padding(self, case: Case) -> None:
        loss = make(case)
        out = loss(pad(case.make_batch(), 0))
        assert out[case.loss] == 0 and all(value.isfinite().all() for value in out.values())
        assert all((gradient == 0).all() for gradient in gradients(loss, out[case.loss]))

    def test_another_mask_is_refused(self, case: Case) -> None:
        batch = pad(case.make_batch())
        for wrong in (batch[MASK].float(), batch[MASK].expand(*batch.shape, 2)):
            with pytest.raises(ValueError, match=r"the mask \('collector', 'mask'\) must be bool"):
                make(case)(batch.copy().set(MASK, wrong))


@EVERYWHERE
class TestParameters:
    def test_all_of_them_learn(self, case: Case) -> None:
        loss = make(case)
        for gradient in gradients(loss, loss(case.make_batch())[case.loss]):
            assert gradient.isfinite().all() and gradient.abs().sum() > 0

    def test_they_are_the_networks_own(self, case: Case) -> None:
        loss = make(case)
        for name in case.networks:
            network, held = getattr(loss, name), getattr(loss, f"{name}_params")
            assert {id(value) for value in network.parameters()} == {
                id(value) for value in held.values(True, True) if isinstance(value, nn.Parameter)
            }
        listed = {id(value) for value in loss.parameters()}
        assert {id(value) for name in case.networks for value in getattr(loss, name).parameters()} <= listed

    def test_a_network_can_be_taken_out_and_put_back(self, case: Case) -> None:
        loss, other, batch = make(case), case.make(), case.make_batch()
        before = loss(batch.copy())[case.loss]
        for name in case.networks:
            taken = loss.get_stateful_net(name)
            assert taken is not getattr(loss, name)
            assert {id(value) for value in taken.parameters()} == {id(v) for v in getattr(loss, name).parameters()}
            loss.from_stateful_net(name, getattr(other, name))
            pairs = zip(getattr(loss, name).parameters(), getattr(other, name).parameters(), strict=True)
            assert all(torch.equal(*pair) for pair in pairs)
        assert not torch.equal(loss(batch.copy())[case.loss], before)

    def test_states_and_copies(self, case: Case) -> None:
        loss, other, batch = make(case), case.make(), case.make_batch()
        with torch.no_grad():
            for value in loss.parameters():
                value.add_(0.1)
        other.update_target(0.5)
        other.load_state_dict(loss.state_dict())
        expected = loss(batch.copy())
        for twin in (other, copy.deepcopy(loss)):
            torch.testing.assert_close(twin(batch.copy()), expected, rtol=0, atol=0)

    def test_reset_parameters_recursive(self, case: Case) -> None:
        loss = make(case)
        with torch.no_grad():
            for value in (*loss.parameters(), *targets(loss, case)):
                value.add_(1000)
        loss.reset_parameters_recursive()
        assert all((value < 500).all() for value in loss.parameters())
        for name in case.networks:
            online, target = (getattr(loss, f"{prefix}{name}_params") for prefix in ("", "target_"))
            for key, value in online.items(True, True):
                if isinstance(value, nn.Parameter):
                    assert torch.equal(target.get(key), value), key
        assert loss(case.make_batch())[case.loss].isfinite()


def targets(loss: LossModule, case: Case) -> list[Tensor]:
    """The slow copies of parameters, not of buffers."""
    pairs = [(getattr(loss, f"{name}_params"), getattr(loss, f"target_{name}_params")) for name in case.networks]
    return [
        target.get(key)
        for online, target in pairs
        for key, value in online.items(True, True)
        if isinstance(value, nn.Parameter)
    ]


def change(loss: LossModule) -> None:
    torch.manual_seed(3)
    with torch.no_grad():
        for value in loss.parameters():
            value.add_(torch.randn_like(value))


@EVERYWHERE
class TestTargets:
    def test_they_learn_nothing_by_themselves(self, case: Case) -> None:
        loss = make(case)
        loss(case.make_batch())[case.loss].backward()
        held = targets(loss, case)
        assert held and all(value.grad is None and not value.requires_grad for value in held)
        assert not {id(value) for value in held} & {id(value) for value in loss.parameters()}

    def test_update_target_is_soft_update(self, case: Case) -> None:
        first, second = make(case), make(case)
        soft = SoftUpdate(second, tau=0.25)
        for loss in (first, second):
            change(loss)
        first.update_target(0.25)
        soft.step()
        torch.testing.assert_close(targets(first, case), targets(second, case))
        assert any(not torch.equal(*pair) for pair in zip(targets(first, case), targets(make(case), case), strict=True))

    def test_one_copies_to_the_last_bit(self, case: Case) -> None:
        first, second = make(case), make(case)
        hard = HardUpdate(second, value_network_update_interval=0)
        for loss in (first, second):
            change(loss)
        first.update_target(1)
        hard.step()
        torch.testing.assert_close(targets(first, case), targets(second, case), rtol=0, atol=0)

    @pytest.mark.parametrize("tau", [0.0, -0.1, 1.5, float("nan")])
    def test_another_tau_is_refused(self, case: Case, tau: float) -> None:
        with pytest.raises(ValueError, match=f"tau={tau}; it must be above 0 and at most 1"):
            make(case).update_target(tau)

    def test_no_warning_where_somebody_moves_them(self, case: Case) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            make(case)(case.make_batch())


@WITH_VALUES
class TestValues:
    def test_make_value_estimator_sets_gamma(self, case: Case) -> None:
        batch = case.make_batch()
        expected = make(case, gamma=0.5)(batch.copy())
        for arguments in ((), (ValueEstimators.TD0,)):
            loss = make(case)
            assert not torch.equal(loss(batch.copy())[case.loss], expected[case.loss])
            assert loss.make_value_estimator(*arguments, gamma=0.5) is loss
            torch.testing.assert_close(loss(batch.copy()), expected, rtol=0, atol=0)

    def test_what_it_refuses(self, case: Case) -> None:
        with pytest.raises(NotImplementedError, match=r"TD0.* only.*n_step"):
            make(case).make_value_estimator(ValueEstimators.TDLambda, gamma=0.9)
        with pytest.raises(TypeError, match=r"\['lmbda'\] are options of other estimators"):
            make(case).make_value_estimator(gamma=0.9, lmbda=0.9)
        with pytest.raises(ValueError, match="gamma=1.5; it must be at least 0 and at most 1"):
            make(case).make_value_estimator(gamma=1.5)

    def test_weights(self, case: Case) -> None:
        batch = case.make_batch()
        each = make(case, reduction="none")(batch.copy())[case.loss]
        for weight in (torch.rand(6), torch.zeros(6), torch.rand(6, 1)):
            found = make(case)(batch.copy().set("priority_weight", weight))[case.loss]
            torch.testing.assert_close(found, (weight.flatten() * each).mean())
        found = make(case)(pad(batch).set("priority_weight", weight))[case.loss]
        torch.testing.assert_close(found, (weight.flatten() * each)[:4].mean())

    @pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
    def test_one_hot_actions(self, case: Case, dtype: torch.dtype) -> None:
        batch = case.make_batch()
        one_hot = nn.functional.one_hot(batch["action"].squeeze(-1), 3).to(dtype)
        with pytest.raises(ValueError, match=r"one-hot.*index.*argmax\(-1\).*categorical_action_encoding=True"):
            make(case)(batch.copy().set("action", one_hot))
        converted = batch.copy().set("action", one_hot.long().argmax(-1))
        torch.testing.assert_close(make(case)(converted)[case.loss], make(case)(batch)[case.loss])


@pytest.mark.slow
@pytest.mark.parametrize("case", [CASES["ContrastiveLoss"]], ids=["ContrastiveLoss"])
def test_compile(case: Case) -> None:
    """One graph, without breaks. (The other losses' own tests compile them, with more questions.)"""
    loss, batch = make(case), case.make_batch()
    torch._dynamo.reset()
    found = torch.compile(loss, backend="aot_eager", fullgraph=True)(batch.copy())
    torch.testing.assert_close(found, loss(batch.copy()))


def test_a_given_target_is_its_owners() -> None:
    target = make_encoder()
    before = [value.clone() for value in target.parameters()]
    loss = ContrastiveLoss(make_encoder(), latent_dim=8, target_encoder_network=target)
    with pytest.raises(RuntimeError, match="this ContrastiveLoss has no target network of its own"):
        loss.update_target(0.1)
    loss.reset_parameters_recursive()
    assert all(torch.equal(*pair) for pair in zip(before, target.parameters(), strict=True))


def test_a_target_that_nobody_moves_is_told() -> None:
    loss = ContrastiveLoss(make_encoder(), latent_dim=8)
    with pytest.warns(UserWarning, match=r"Nothing moves the target network.*loss.update_target\(tau\)"):
        loss(make_views(6))
