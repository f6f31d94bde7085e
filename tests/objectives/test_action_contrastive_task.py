"""ActionContrastiveTask against a plain version: which tokens the Transformer gets, and what is predicted."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Bounded, Categorical, LazyTensorStorage, TensorSpec

from mcurl_torchrl import FrameReplayBuffer, PixelEncoder
from mcurl_torchrl.modules import ActionEmbedding
from mcurl_torchrl.objectives import masked_info_nce
from mcurl_torchrl.objectives.action_contrastive_task import ActionContrastiveTask

VECTORS, INDICES = Bounded(-1, 1, shape=(3,)), Categorical(4)
LENGTH = 12  # steps of an episode


def make_buffer(spec: TensorSpec) -> FrameReplayBuffer:
    buffer = FrameReplayBuffer(storage=LazyTensorStorage(100), num_frames=2, stacked_input=False)
    for _ in range(3):
        frames = torch.randint(256, (LENGTH + 1, 1, 12, 12), dtype=torch.uint8)
        last = torch.arange(LENGTH)[:, None] == LENGTH - 1
        outcome = {"pixels": frames[1:], "reward": torch.zeros(LENGTH, 1), "truncated": last}
        outcome["terminated"] = torch.zeros_like(last)
        buffer.extend(TensorDict({"pixels": frames[:-1], "action": spec.rand((LENGTH,)), "next": outcome}, [LENGTH]))
    return buffer


def make_task(spec: TensorSpec = VECTORS, **options) -> ActionContrastiveTask:
    encoder = PixelEncoder(2, 12, num_layers=1, num_filters=4, feature_dim=8)
    options = {"num_slices": 4, "slice_len": LENGTH + 1, "dropout": 0.0, **options}
    return ActionContrastiveTask(encoder, make_buffer(spec), action_spec=spec, **options)


def plain_tokens(task: ActionContrastiveTask, views: TensorDict, latents: Tensor) -> Tensor:
    """What the Transformer gets, token by token."""
    embedding = task.loss_module.context_network.embedding
    slices = []
    for b in range(len(latents)):
        tokens = []
        for t in range(latents.shape[1]):
            action = embedding(views["action"][b, t]) if not views["final"][b, t] else torch.zeros(8).double()
            tokens += [latents[b, t], action] if task.layout == "interleaved" else [latents[b, t] + action]
        slices.append(torch.stack(tokens))
    return torch.stack(slices)


@pytest.mark.parametrize(("spec", "size"), [(VECTORS, 3), (INDICES, 4)], ids=["continuous", "discrete"])
def test_actions_are_embedded_as_the_released_code_would(spec: TensorSpec, size: int) -> None:
    """Its class has Linear(A, 2d), ReLU, Linear(2d, d), LayerNorm, and is not used."""
    embedding = make_task(spec).loss_module.context_network.embedding
    shapes = [tuple(value.shape) for value in embedding.parameters()]
    assert shapes == [(16, size), (16,), (8, 16), (8,), (8,), (8,)]


@pytest.mark.parametrize("spec", [VECTORS, INDICES], ids=["continuous", "discrete"])
@pytest.mark.parametrize("layout", ["interleaved", "added"])
def test_the_loss_equals_a_plain_version(spec: TensorSpec, layout: str) -> None:
    torch.manual_seed(0)
    task = make_task(spec, layout=layout, coeff=0.5).double()
    views = task.sample()
    assert views["final"].sum() == 4  # whole episodes: each ends with an observation without an action
    loss = task.loss_module
    with torch.no_grad():
        latents = loss.encode(views["mcurl", "query_pixels"])
        made = loss.context_network.context(plain_tokens(task, views, latents))
        queries = made[:, torch.arange(LENGTH + 1) * (2 if layout == "interleaved" else 1)]
        keys = loss.encode_keys(views["mcurl", "key_pixels"])
        expected = 0.5 * masked_info_nce(queries, keys, masked=views["mcurl", "masked"])
        torch.testing.assert_close(task(views)["loss_auxiliary"], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("layout", ["interleaved", "added"])
def test_actions_of_hidden_observations_are_seen(layout: str) -> None:
    torch.manual_seed(0)
    task = make_task(layout=layout, mask_ratio=1.0, zero=1.0, replace=0.0)  # only actions are left to tell
    views = task.sample()
    before = task(views.clone())["loss_auxiliary"]
    views["action"][:, 3] += 1
    assert task(views)["loss_auxiliary"] != before


def test_the_action_stored_after_the_last_observation_means_nothing() -> None:
    task = make_task()
    views = task.sample()
    before = task(views.clone())["loss_auxiliary"]
    views["action"][views["final"]] += 1
    assert task(views)["loss_auxiliary"] == before


def test_slices_carry_the_actions_that_were_taken() -> None:
    buffer = FrameReplayBuffer(storage=LazyTensorStorage(100), stacked_input=False)
    frames = torch.arange(20, dtype=torch.uint8).view(20, 1, 1, 1).expand(20, 1, 12, 12)
    flags = torch.zeros(19, 1, dtype=torch.bool)
    outcome = {"pixels": frames[1:], "reward": torch.zeros(19, 1), "truncated": flags, "terminated": flags}
    buffer.extend(TensorDict({"pixels": frames[:-1], "action": 100 + torch.arange(19), "next": outcome}, [19]))
    encoder = PixelEncoder(1, 12, num_layers=1, num_filters=4, feature_dim=8)
    task = ActionContrastiveTask(encoder, buffer, action_spec=Categorical(200), num_slices=4, slice_len=5)
    views = task.sample()
    assert torch.equal(views["action"], 100 + views["mcurl", "key_pixels"][:, :, 0, 0, 0].long())


@pytest.mark.parametrize("spec", [VECTORS, INDICES], ids=["continuous", "discrete"])
def test_gradients_reach_the_embedding_and_not_the_keys(spec: TensorSpec) -> None:
    task = make_task(spec)
    task.loss().backward()
    embedding = task.loss_module.context_network_params["embedding"]
    gradients = [value.grad for value in embedding.values(True, True)]
    assert len(gradients) == 6 and all(gradient.abs().sum() > 0 for gradient in gradients)
    assert all(value.grad is None for value in task.loss_module.target_encoder_network_params.values(True, True))


def test_bad_settings_name_themselves() -> None:
    with pytest.raises(ValueError, match="layout='mixed'; choose one of"):
        make_task(layout="mixed")
    with pytest.raises(ValueError, match=r"actions must be one Categorical or vectors \[A\]"):
        ActionEmbedding(Bounded(-1, 1, shape=(2, 3)), 8)
    with pytest.raises(ValueError, match=r"actions must be \['\*', 3\]; got \[5, 2\]"):
        ActionEmbedding(VECTORS, 8)(torch.zeros(5, 2))
    with pytest.raises(ValueError, match="actions must be integer indices; got torch.float32"):
        ActionEmbedding(INDICES, 8)(torch.zeros(5))
