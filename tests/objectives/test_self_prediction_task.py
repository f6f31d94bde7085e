"""SelfPredictionTask against what released code computes, and what it reads from the replay.

``tests/data/self_prediction.npz``, of SPR for Rainbow, holds one small batch: 44x44 observations ``[K + 1, B]``
= [4, 4] of two frames, 3 convolutions of 3, 4 and 4 filters, three actions, a noisy head of 5 hidden units, all
parameters random, two episodes that end; the loss (times 5) and the gradients that the released code
(``SPRCategoricalDQN.loss``) computes for it. ``tests/data/self_prediction_latents.npz``, of SPR for SAC, holds the same
for PlayVirtual's released code (``SPRSacAgent.update_spr``, 54200a5): 16x16 observations ``[4, 5]`` of one frame, 2
convolutions of 4 filters, latents of 6, actions of 2, hidden layers of 9 and 8, a weight of 1. Both files come from
released code, not from this package: they are never refreshed from here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Bounded, Categorical, LazyTensorStorage

from mcurl_torchrl import AtariEncoder, FrameReplayBuffer, PixelEncoder, PrioritizedTransitionSampler
from mcurl_torchrl.modules import DuelingHead, MomentumCopy
from mcurl_torchrl.modules.encoders import rescale_latents
from mcurl_torchrl.objectives.self_prediction_task import SelfPredictionTask
from mcurl_torchrl.transforms import augment_transitions
from tests.objectives.golden import SmallAtariEncoder, released_head_name
from tests.objectives.test_golden import assert_golden

FILE = Path(__file__).parents[1] / "data" / "self_prediction.npz"
LAYERS = {"0": "0.net.0", "2": "2", "3": "3.net.0"}


def golden_name(name: str) -> str | None:
    """Turns our name of a parameter into the released code's; None where it has no part in the loss."""
    part, _, rest = name.partition(".")
    if part == "encoder":
        return rest.replace("convs", "conv.conv")
    if part == "target_encoder":
        return rest.replace("copy.convs", "target_encoder.conv")
    if part == "predictor":
        return f"global_final_classifier.0.{rest}"
    if part == "transition":
        _, number, kind = rest.split(".")
        return f"dynamics_model.network.{LAYERS[number]}.{kind}"
    return released_head_name(name)


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    with np.load(FILE, allow_pickle=False) as file:
        return {name: torch.from_numpy(np.asarray(file[name])) for name in file.files}


def make_golden_task(golden: dict[str, Tensor]) -> SelfPredictionTask:
    buffer = FrameReplayBuffer(storage=LazyTensorStorage(10), num_frames=2)
    encoder, head = SmallAtariEncoder(), DuelingHead(16, 3, num_atoms=3, hidden_dim=5)
    task = SelfPredictionTask(encoder, buffer, action_spec=Categorical(3), head=head, steps_ahead=3)
    loaded = set()
    with torch.no_grad():
        for name, parameter in task.named_parameters():
            if (key := golden_name(name)) is not None:
                parameter.copy_(golden[f"param/{key}"])
                loaded.add(f"param/{key}")
    assert loaded == {name for name in golden if name.startswith("param/")}
    return task


def golden_views(golden: dict[str, Tensor]) -> TensorDict:
    pixels = golden["obs"].transpose(0, 1)
    views = {"pixels": pixels[:, 0], "following": pixels[:, 1:], "action": golden["action"].transpose(0, 1)}
    return TensorDict({**views, "valid": golden["nonterminal"].transpose(0, 1), "weight": golden["weight"]}, [4])


def test_loss_and_every_gradient_equal_the_released_code(golden: dict[str, Tensor]) -> None:
    assert 0 < golden["nonterminal"].sum() < golden["nonterminal"].numel()
    task = make_golden_task(golden)
    loss = task(golden_views(golden))["loss_auxiliary"]
    assert_golden(loss, golden["loss"])
    loss.backward()
    compared = set()
    for name, parameter in task.named_parameters():
        key = golden_name(name)
        if key is None or name.startswith("target"):
            assert parameter.grad is None, name
            continue
        assert_golden(parameter.grad, golden[f"grad/{key}"], name)
        compared.add(f"grad/{key}")
    assert compared == {name for name in golden if name.startswith("grad/")}


# -- on latents, without a head ----------------------------------------------------------------------------------------

LATENTS_FILE = FILE.with_name("self_prediction_latents.npz")
LATENT_PARTS = {
    "encoder": "encoder",
    "transition.layers.0": "transition_model.fc",
    "transition.layers.1": "transition_model.ln",
    "transition.layers.3": "transition_model.fc_mu",
    "projection": "global_classifier",
    "predictor": "global_final_classifier",
    "target_encoder.copy": "target_encoder",
    "target_projection.copy": "global_target_classifier",
}


def latents_name(name: str) -> str:
    """Turns our name of a parameter into PlayVirtual's."""
    part = next(part for part in LATENT_PARTS if name.startswith(f"{part}."))
    return LATENT_PARTS[part] + name.removeprefix(part)


@pytest.mark.parametrize("shares_target", [False, True])
def test_loss_and_every_gradient_on_latents_equal_the_released_code(shares_target: bool) -> None:
    with np.load(LATENTS_FILE, allow_pickle=False) as file:
        golden = {name: torch.from_numpy(np.asarray(file[name])) for name in file.files}
    buffer = FrameReplayBuffer(storage=LazyTensorStorage(10), num_frames=1)
    encoder = PixelEncoder(3, 16, num_layers=2, num_filters=4, feature_dim=6)
    target = MomentumCopy(encoder, tau=0.5) if shares_target else None
    task = SelfPredictionTask(
        encoder,
        buffer,
        action_spec=Bounded(-1, 1, shape=(2,)),
        target_encoder=target,
        steps_ahead=3,
        model_dim=9,
        hidden_dim=8,
        coeff=1.0,
    )
    named = dict(task.named_parameters())
    if target is not None:
        named |= {f"target_encoder.{name}": value for name, value in target.named_parameters()}
    assert {f"param/{latents_name(name)}" for name in named} == {key for key in golden if key.startswith("param/")}
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(golden[f"param/{latents_name(name)}"])
    pixels = golden["obs"].transpose(0, 1)
    views = {"pixels": pixels[:, 0], "following": pixels[:, 1:], "action": golden["action"].transpose(0, 1)}
    valid, weight = torch.ones(5, 3, dtype=torch.bool), torch.ones(5)
    loss = task(TensorDict({**views, "valid": valid, "weight": weight}, [5]))["loss_auxiliary"]
    assert_golden(loss, golden["loss"])
    loss.backward()
    trained = {name: value for name, value in named.items() if not name.startswith("target")}
    for name, parameter in trained.items():
        assert_golden(parameter.grad, golden[f"grad/{latents_name(name)}"], name)
    assert all(value.grad is None for name, value in named.items() if name.startswith("target"))
    assert {f"grad/{latents_name(name)}" for name in trained} == {key for key in golden if key.startswith("grad/")}


def test_on_latents_all_networks_but_the_encoder_are_the_tasks_own() -> None:
    encoder = PixelEncoder(2, 44, num_layers=2, num_filters=4, feature_dim=6)
    task = SelfPredictionTask(encoder, make_buffer(), action_spec=Categorical(3), steps_ahead=2)
    own = [task.transition, task.projection, task.predictor]
    assert set(task.own_parameters()) == {value for network in own for value in network.parameters()}
    assert task.own_networks().keys() == {"transition", "projection", "predictor"}
    before = {name: value.clone() for name, value in task.named_parameters()}
    task.reset_networks(keep=1.0)  # the model of transitions and the copy of the encoder stay as they are
    changed = {name.split(".")[0] for name, value in task.named_parameters() if not torch.equal(value, before[name])}
    assert changed == {"projection", "predictor", "target_projection"}


# -- the task on a replay ----------------------------------------------------------------------------------------------

LENGTHS = (3, 9, 14)  # steps of the episodes


def make_buffer() -> FrameReplayBuffer:
    """Episodes of two-frame stacks whose pixels are the frame's number, and whose actions are numbers too."""
    sampler = PrioritizedTransitionSampler(alpha=1.0, beta=1.0)
    buffer = FrameReplayBuffer(
        storage=LazyTensorStorage(100), num_frames=2, n_step=2, stacked_input=False, sampler=sampler, batch_size=64
    )
    first = 1
    for length in LENGTHS:
        number = torch.arange(first, first + length + 1)
        frames = number.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 44, 44)
        last = torch.arange(length)[:, None] == length - 1
        outcome = {"pixels": frames[1:], "reward": torch.rand(length, 1), "truncated": torch.zeros_like(last)}
        outcome["terminated"] = last
        buffer.extend(TensorDict({"pixels": frames[:-1], "action": number[:-1] % 3, "next": outcome}, [length]))
        first += 100 - 30 * LENGTHS.index(length)
    return buffer


def make_task(buffer: FrameReplayBuffer, **options) -> SelfPredictionTask:
    options = {"steps_ahead": 5, "action_spec": Categorical(3), **options}
    head = options.pop("head", None) or DuelingHead(16, 3, num_atoms=3, hidden_dim=5)
    return SelfPredictionTask(SmallAtariEncoder(), buffer, head=head, **options)


def test_it_reads_what_follows_the_batch_of_rl() -> None:
    buffer = make_buffer()
    task = make_task(buffer)
    batch = buffer.sample()
    views = task.sample(batch)
    assert torch.equal(views["pixels"], batch["pixels"])
    ends = {1 + 3, 101 + 9, 171 + 14}  # the numbers of the last frames
    for row in range(64):
        now = int(batch["pixels"][row, 1, 0, 0])
        left = min(end - now for end in ends if end >= now)
        for ahead in range(1, 6):
            valid = ahead <= left
            assert views["valid"][row, ahead - 1] == valid
            assert views["following"][row, ahead - 1, 1, 0, 0] == now + min(ahead, left)
            if valid:
                assert views["following"][row, ahead - 1, 0, 0, 0] == now + ahead - 1
                assert views["action"][row, ahead - 1] == (now + ahead - 1) % 3  # which led there
    assert not views["valid"].all()
    assert torch.equal(views["weight"], batch["priority_weight"].view(-1))


def test_the_task_augments_the_start_or_takes_it_as_rl_learns_from_it() -> None:
    for share_start in (False, True):
        buffer = make_buffer()
        buffer.append_transform(augment_transitions(lambda images: images + 50))
        task = make_task(buffer, augmentation=lambda images: images + 100, share_start=share_start)
        batch = buffer.sample()
        views = task.sample(batch)
        assert torch.equal(views["pixels"], batch["pixels"] + (0 if share_start else 50))
        first, following = views["pixels"][:, 1, 0, 0], views["following"][:, 0, 1, 0, 0]
        ahead = 51 if share_start else 1  # 100 more instead of 50, and the next frame's number is higher by 1
        assert torch.equal((following - first)[views["valid"][:, 0]].unique(), torch.tensor([ahead], dtype=torch.uint8))


def test_what_comes_after_the_end_does_not_count() -> None:
    buffer = make_buffer()
    task = make_task(buffer).eval()
    views = task.sample(buffer.sample())
    before = task(views.clone())
    views["following"][~views["valid"]] = 77
    after = task(views)
    assert torch.equal(after["loss_auxiliary"], before["loss_auxiliary"])
    assert torch.equal(after["prediction_similarity"], before["prediction_similarity"])


def test_each_sequence_has_its_weight() -> None:
    buffer = make_buffer()
    task = make_task(buffer).eval()
    views = task.sample(buffer.sample())
    whole = 0.0
    for row in range(64):
        one = views.clone()
        one["weight"] = torch.where(torch.arange(64) == row, one["weight"], 0.0)
        whole += task(one)["loss_auxiliary"]
    torch.testing.assert_close(task(views)["loss_auxiliary"], whole)


def test_slow_copies_follow_encoder_and_head() -> None:
    for tau in (1.0, 0.25):
        task = make_task(make_buffer(), target_tau=tau)
        pairs = [(task.encoder, task.target_encoder.copy), (task.projection, task.target_projection.copy)]
        before = [[value.clone() for value in copy.parameters()] for _, copy in pairs]
        with torch.no_grad():
            for network, _ in pairs:
                for value in network.parameters():
                    value.add_(4.0)
        task.update_targets()
        for (_, copy), old in zip(pairs, before, strict=True):
            for value, start in zip(copy.parameters(), old, strict=True):
                torch.testing.assert_close(value, start + 4 * tau)


def test_head_and_encoder_stay_the_agents() -> None:
    head = DuelingHead(16, 3, num_atoms=3, hidden_dim=5)
    task = make_task(make_buffer(), head=head)
    own = set(task.own_parameters())
    assert own == {*task.transition.parameters(), *task.predictor.parameters()}
    assert own.isdisjoint(head.parameters())


def test_features_between_0_and_1() -> None:
    pixels = torch.randint(256, (6, 4, 40, 40), dtype=torch.uint8)
    encoder = AtariEncoder(4, 40, rescale=True)
    features = encoder.features(pixels)
    assert torch.equal(features.amin(-1), torch.zeros(6)) and torch.equal(features.amax(-1), torch.ones(6))
    torch.testing.assert_close(rescale_latents(features), features)  # so the task may rescale them again
    plain = AtariEncoder(4, 40)
    plain.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(rescale_latents(plain.features(pixels)), features)


def test_bad_settings_name_themselves() -> None:
    with pytest.raises(ValueError, match="with a head, SPR takes discrete actions"):
        make_task(make_buffer(), action_spec=Bounded(-1, 1, shape=(2,)))
    with pytest.raises(ValueError, match="with a head the task makes its own slow copy"):
        make_task(make_buffer(), target_encoder=MomentumCopy(SmallAtariEncoder(), tau=0.5))
    with pytest.raises(ValueError, match="steps_ahead=0; it must be at least 1"):
        make_task(make_buffer(), steps_ahead=0)
    with pytest.raises(ValueError, match=r"task.loss\(buffer.sample\(\)\)"):
        make_task(make_buffer()).loss()
