"""MaskedReconstructionTask against what MLR's released code computes, and where its views and gradients come from.

``tests/data/masked_reconstruction.npz``, of MLR for SAC, holds one small batch: 64x64 observations ``[T, B]`` = [4, 3],
cubes of 8 pixels and 2 observations, two convolutions of 2 filters, d = 6, hidden 12, two Transformer layers, all
parameters random; the loss and the gradients that the released code (DMControl, ``MTMSacAgent.update_mtm``) computes
for it. ``tests/data/masked_reconstruction_head.npz``, of MLR for Rainbow, holds the same for the released code for
Atari (``PVCatDqnModel.forward``, eefeb81): 44x44 observations ``[T, B]`` = [4, 3] of two frames, cubes of 11 pixels and
2 observations, three convolutions of 3, 4 and 4 filters, three actions, a noisy head of 5 hidden units. Its
observations were divided by 255 beforehand: given bytes, the released code divides those of the targets alone. Both
files come from released code, not from this package: they are never refreshed from here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.data import Bounded, Categorical, LazyTensorStorage

from mcurl_torchrl import FrameReplayBuffer, PixelEncoder
from mcurl_torchrl.modules import DuelingHead, MomentumCopy
from mcurl_torchrl.objectives.masked_reconstruction_task import MaskedReconstructionTask
from mcurl_torchrl.transforms import KEY_VIEW, QUERY_VIEW, make_augmentation
from tests.objectives.golden import ENCODER_NAMES, SmallAtariEncoder, released_head_name, released_name
from tests.objectives.test_golden import assert_golden

FILE = Path(__file__).parents[1] / "data" / "masked_reconstruction.npz"
HEAD_FILE = FILE.with_name("masked_reconstruction_head.npz")
PARTS = {"projection": "global_classifier", "predictor": "global_final_classifier"}
LAYER_NAMES = {
    "attention_norm": "norm1",
    "in_projection": "attn.qkv",
    "out_projection": "attn.proj",
    "ffn_norm": "norm2",
    "ffn_in": "mlp.fc1",
    "ffn_out": "mlp.fc2",
}


def golden_name(name: str) -> str:
    """Turns our name of a parameter into that of the released code for DMControl."""
    part, _, rest = name.partition(".")
    if part == "encoder":
        return f"encoder.{released_name(rest, ENCODER_NAMES)}"
    if part == "target_projection":
        return rest.replace("copy", "global_target_classifier", 1)
    if part in PARTS:
        return f"{PARTS[part]}.{rest}"
    assert part == "context"
    return context_name(rest, "action_emb")


def golden_head_name(name: str) -> str | None:
    """Turns our name of a parameter into that of the released code for Atari; None where it has no part in the loss."""
    part, _, rest = name.partition(".")
    if part == "encoder":
        return rest.replace("convs", "conv.conv")
    if part == "_own_target":
        return rest.replace("copy.convs", "target_encoder.conv")
    if part == "predictor":
        return f"global_final_classifier.0.{rest}"
    return context_name(rest, "action_embedding") if part == "context" else released_head_name(name)


def context_name(name: str, embedding: str) -> str:
    if name.startswith("embedding"):
        return name.replace("embedding.layers", embedding)
    pieces = [LAYER_NAMES.get(piece, piece) for piece in name.split(".")]
    return ".".join(["transformer", *pieces[1:]])


def empty_buffer() -> FrameReplayBuffer:
    return FrameReplayBuffer(storage=LazyTensorStorage(100), stacked_input=False, batch_size=4)


def load(path: Path) -> dict[str, Tensor]:
    with np.load(path, allow_pickle=False) as file:
        return {name: torch.from_numpy(np.asarray(file[name])) for name in file.files}


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    return load(FILE)


def make_golden_task(golden: dict[str, Tensor]) -> MaskedReconstructionTask:
    encoder, target = (PixelEncoder(3, 64, num_layers=2, num_filters=2, feature_dim=6) for _ in range(2))
    task = MaskedReconstructionTask(
        encoder, empty_buffer(), action_spec=Bounded(-1, 1, shape=(2,)), target_encoder=target, hidden_dim=12
    )
    task.load_state_dict({name: golden[f"param/{golden_name(name)}"] for name in task.state_dict()})
    names = {name: f"param/target_encoder.{released_name(name, ENCODER_NAMES)}" for name in target.state_dict()}
    target.load_state_dict({name: golden[key] for name, key in names.items()})
    return task


def golden_views(golden: dict[str, Tensor]) -> TensorDict:
    return make_views(golden, golden["mask"])


def make_views(golden: dict[str, Tensor], hidden: Tensor) -> TensorDict:
    """The batch, with cubes hidden: bool ``[T, 1, H, W]``."""
    pixels = golden["obs"].transpose(0, 1)
    views = {"query_pixels": pixels.masked_fill(hidden, 0), "key_pixels": pixels}
    final = torch.zeros(3, 4, dtype=torch.bool)
    return TensorDict({"mcurl": views, "action": golden["action"].transpose(0, 1), "final": final}, [3, 4])


def test_loss_and_every_gradient_equal_the_released_code(golden: dict[str, Tensor]) -> None:
    task = make_golden_task(golden)
    out = task(golden_views(golden))
    assert_golden(out["loss_auxiliary"], golden["loss"])
    torch.testing.assert_close(out["reconstruction_similarity"], 1 - golden["loss"] / 2)
    out["loss_auxiliary"].backward()
    compared = set()
    for name, parameter in task.named_parameters():
        if name.startswith("target_projection"):
            assert parameter.grad is None
            continue
        assert_golden(parameter.grad, golden[f"grad/{golden_name(name)}"], name)
        compared.add(golden_name(name))
    assert all(value.grad is None for value in task.__dict__["_shared_target"].parameters())
    assert compared == {name.removeprefix("grad/") for name in golden if name.startswith("grad/")}


def test_loss_and_every_gradient_through_rainbows_head_equal_the_released_code() -> None:
    golden = load(HEAD_FILE)
    task = MaskedReconstructionTask(
        SmallAtariEncoder(rescale=True),
        empty_buffer(),
        action_spec=Categorical(3),
        head=DuelingHead(16, 3, num_atoms=3, hidden_dim=5),
        projector="head",
    )
    names = {name: key for name, _ in task.named_parameters() if (key := golden_head_name(name)) is not None}
    assert {f"param/{key}" for key in names.values()} == {key for key in golden if key.startswith("param/")}
    task.load_state_dict({name: golden[f"param/{key}"] for name, key in names.items()}, strict=False)
    loss = task(make_views(golden, ~golden["shown"].unsqueeze(1)))["loss_auxiliary"]
    assert_golden(loss, golden["loss"])
    loss.backward()
    compared = set()
    for name, parameter in task.named_parameters():
        if name not in names or "target" in name:
            assert parameter.grad is None, name
            continue
        assert_golden(parameter.grad, golden[f"grad/{names[name]}"], name)
        compared.add(f"grad/{names[name]}")
    assert compared == {name for name in golden if name.startswith("grad/")}


# -- the task on a replay ----------------------------------------------------------------------------------------------


def make_buffer(discrete: bool = False) -> FrameReplayBuffer:
    buffer = empty_buffer()
    for _ in range(2):
        frames = torch.randint(1, 256, (13, 1, 12, 12), dtype=torch.uint8)
        last = torch.arange(12)[:, None] == 11
        outcome = {"pixels": frames[1:], "reward": torch.zeros(12, 1), "truncated": last}
        outcome["terminated"] = torch.zeros_like(last)
        action = torch.randint(4, (12,)) if discrete else torch.rand(12, 3)
        buffer.extend(TensorDict({"pixels": frames[:-1], "action": action, "next": outcome}, [12]))
    return buffer


def make_task(*, discrete: bool = False, **options) -> MaskedReconstructionTask:
    encoder = PixelEncoder(1, 12, num_layers=1, num_filters=4, feature_dim=8)
    spec = Categorical(4) if discrete else Bounded(-1, 1, shape=(3,))
    options = {"num_slices": 4, "slice_len": 6, "patch_size": 3, "block_len": 4, "hidden_dim": 10, **options}
    return MaskedReconstructionTask(encoder, make_buffer(discrete), action_spec=spec, **options)


def test_cubes_are_hidden_before_the_augmentation_and_only_in_the_query_view() -> None:
    task = make_task(augmentation=lambda images: images.clamp(max=254) + 1)
    views = task.sample()
    cubes = views["mcurl", "cubes"]
    assert cubes.shape == (4, 6, 12, 12) and cubes.float().mean() == 0.5
    assert ((views[QUERY_VIEW].squeeze(2) == 1) == cubes).all()  # zeros, then one more
    assert (views[KEY_VIEW] > 1).all()


def test_the_intensity_of_each_view_is_drawn_by_itself() -> None:
    views = make_task(augmentation=make_augmentation(intensity_scale=0.05), mask_ratio=0.0).sample()
    factor = views[QUERY_VIEW] / views[KEY_VIEW]
    assert views[QUERY_VIEW].max() <= 1.1  # as the encoder sees it, not 0 to 255
    torch.testing.assert_close(factor, factor[..., :1, :1].expand_as(factor))  # one for an observation
    assert len(factor[:, :, 0, 0, 0].unique()) == 24


def test_the_loss_is_taken_at_every_observation() -> None:
    task = make_task()
    views = task.sample()
    for place in range(6):
        changed = views.clone()
        changed[KEY_VIEW][:, place] = 255 - changed[KEY_VIEW][:, place]
        assert task(changed)["loss_auxiliary"] != task(views)["loss_auxiliary"], place


def test_all_actions_are_seen_but_the_one_after_the_end() -> None:
    task = make_task(slice_len=13)
    for value in task.context.parameters():
        nn.init.normal_(value)  # the initial ones are so small that attention hardly moves the loss
    views = task.sample()
    before = task(views.clone())["loss_auxiliary"]
    changed = views.clone()
    changed["action"][changed["final"]] += 1
    assert task(changed)["loss_auxiliary"] == before
    changed["action"][:, 0] += 1
    assert task(changed)["loss_auxiliary"] != before


def test_slow_copies_follow_encoder_and_projection() -> None:
    task = make_task(tau=0.25)
    parts = [(task.projection, task.target_projection.copy), (task.encoder, task._own_target.copy)]
    before = [[value.clone() for value in copy.parameters()] for _, copy in parts]
    with torch.no_grad():
        for network, _ in parts:
            for value in network.parameters():
                value.add_(4.0)
    task.update_targets()
    for (_, copy), old in zip(parts, before, strict=True):
        for value, start in zip(copy.parameters(), old, strict=True):
            torch.testing.assert_close(value, start + 1.0)


def test_with_a_shared_target_encoder_only_the_projection_is_moved() -> None:
    encoder = PixelEncoder(1, 12, num_layers=1, num_filters=4, feature_dim=8)
    target = MomentumCopy(encoder, tau=0.5)
    task = make_task(target_encoder=target)
    assert task._own_target is None and not any("shared" in name for name in task.state_dict())
    task.loss().backward()
    assert all(value.grad is None for value in target.parameters())


def test_rainbows_head_is_the_projection_and_stays_the_agents() -> None:
    head = DuelingHead(8, 4, hidden_dim=5)
    task = make_task(discrete=True, head=head, projector="head")
    assert task.predictor.in_features == task.predictor.out_features == 10
    own = set(task.own_parameters())
    assert own.isdisjoint(head.parameters()) and set(task.predictor.parameters()) <= own
    task.loss().backward()
    first = [head.value[0], head.advantage[0]]
    assert all(layer.weight_mu.grad.abs().sum() > 0 for layer in first)
    assert all(layer.weight_sigma.grad is None for layer in first)  # no noise here


def test_the_heads_hidden_layers_are_free_of_noise() -> None:
    for noisy in (True, False):
        head = DuelingHead(8, 4, hidden_dim=5, noisy=noisy)
        latent = torch.randn(7, 8)
        quiet = head.eval()
        expected = torch.cat([quiet.value[0](latent), quiet.advantage[0](latent)], -1)
        torch.testing.assert_close(head.train().hidden(latent), expected)
    assert DuelingHead(8, 4, hidden_dim=5, dueling=False).hidden(latent).shape == (7, 5)


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ({"projector": "head"}, "projector='head' needs the agent's head"),
        ({"projector": "linear"}, "projector='linear'; choose one of"),
        ({"mask_ratio": 1.5}, "mask_ratio=1.5; it must be at least 0 and at most 1"),
        ({"num_heads": 3}, "num_heads=3 does not divide feature_dim=8"),
        ({"lr_scale": 0.0}, "lr_scale=0.0; it must be above 0"),
    ],
)
def test_bad_settings_name_themselves(options: dict, answer: str) -> None:
    with pytest.raises(ValueError, match=answer):
        make_task(**options)


def test_the_learning_rate_of_its_own_networks_is_scaled() -> None:
    task = make_task(lr_scale=0.5)
    (group,) = task.param_groups(1e-3)
    assert group["lr"] == 5e-4 and isinstance(task.predictor, nn.Sequential)
