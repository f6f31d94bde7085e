"""The contract of auxiliary tasks, for every objective that has a YAML: a new one is covered by adding its file."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest
import torch
import yaml
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical, LazyTensorStorage

from mcurl_torchrl import (
    AuxiliaryTask,
    ContrastiveTask,
    FrameReplayBuffer,
    MaskedContrastiveTask,
    PixelEncoder,
    RandomCrop,
)
from mcurl_torchrl.modules import DuelingHead, MomentumCopy
from mcurl_torchrl.objectives import NoTask
from recipes.building import wanted

FOLDER = Path(__file__).parents[2] / "recipes" / "conf" / "shared" / "objective"
NAMES = sorted(file.stem for file in FOLDER.glob("*.yaml"))
HEADLESS = "spr without a head"
SMALL = {"num_slices": 3, "slice_len": 6, "feature_dim": 8, "hidden_dim": 8, "dropout": 0.0, "mask_ratio": 0.5}


def options_of(name: str) -> dict:
    """The settings of an objective's file, with those of the file it builds on."""
    name = name.split()[0]
    listed = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    for base in listed.pop("defaults", []):
        listed = options_of(base) | listed
    return listed


def class_of(name: str) -> type:
    module, _, made = options_of(name)["task"].rpartition(".")
    return getattr(importlib.import_module(module), made)


def make_buffer(*, discrete: bool = False) -> FrameReplayBuffer:
    crop = RandomCrop(20, in_keys=["pixels", ("next", "pixels")])
    buffer = FrameReplayBuffer(
        storage=LazyTensorStorage(200), num_frames=2, stacked_input=False, batch_size=8, transform=crop
    )
    for _ in range(3):
        frames = torch.randint(256, (31, 1, 24, 24), dtype=torch.uint8)
        last = torch.arange(30)[:, None] == 29
        outcome = {"pixels": frames[1:], "reward": torch.rand(30, 1), "truncated": last}
        outcome["terminated"] = torch.zeros_like(last)
        action = torch.randint(3, (30,)) if discrete else torch.rand(30, 2)
        buffer.extend(TensorDict({"pixels": frames[:-1], "action": action, "next": outcome}, [30]))
    return buffer


def make_encoder() -> PixelEncoder:
    return PixelEncoder(2, 20, num_layers=2, num_filters=4, feature_dim=8)


class Convolutions(PixelEncoder):
    """An encoder without a projection, like Rainbow's."""

    def __init__(self) -> None:
        super().__init__(2, 20, num_layers=2, num_filters=4, feature_dim=8)
        self.linear, self.norm = torch.nn.Identity(), torch.nn.Identity()
        self.feature_dim = self.num_features


def make_parts(name: str) -> tuple[FrameReplayBuffer, PixelEncoder]:
    """A buffer and an encoder as the task's agent has them: SPR learns beside Rainbow, which has a head."""
    has_head = name == "spr"
    return make_buffer(discrete=has_head), Convolutions() if has_head else make_encoder()


def make(name: str, encoder: PixelEncoder, buffer: FrameReplayBuffer, **given) -> AuxiliaryTask:
    options = options_of(name)
    assert options.pop("name") == name.split()[0]
    options.pop("task")
    options |= {key: value for key, value in SMALL.items() if key in options}
    kind, discrete = class_of(name), isinstance(encoder, Convolutions)
    offered = {
        "augmentation": RandomCrop(20),
        "action_spec": Categorical(3) if discrete else Bounded(-1, 1, shape=(2,)),
        "head": DuelingHead(encoder.num_features, 3, hidden_dim=5) if discrete else None,
        **given,
    }
    return kind(encoder, buffer, **wanted(kind, options, offered, name), **options)


@pytest.fixture(params=[*NAMES, HEADLESS])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_a_file_lists_every_keyword_of_its_class(name: str):
    options = options_of(name)
    parameters = inspect.signature(class_of(name)).parameters
    accepted = {key for key, value in parameters.items() if value.kind == value.KEYWORD_ONLY}
    assert set(options) - {"name", "task"} <= accepted
    if name in ("mcurl", "none"):  # the others share a class, and leave out the keywords that mean nothing to them
        assert set(options) - {"name", "task"} == accepted - {"augmentation", "target_encoder"}


def test_a_task_has_a_loss_and_metrics(name: str):
    buffer, encoder = make_parts(name)
    task = make(name, encoder, buffer)
    out = task(task.sample(buffer.sample()))
    losses = [key for key in list(out.keys()) if key.startswith("loss_")]
    assert losses == ["loss_auxiliary"] and out["loss_auxiliary"].shape == ()
    assert all(not value.requires_grad for key, value in out.items() if key != "loss_auxiliary")
    assert set(task.shown) <= set(out.keys())


def test_gradients_reach_the_encoder_and_all_of_the_tasks_own_parameters(name: str):
    buffer, encoder = make_parts(name)
    task = make(name, encoder, buffer)
    loss = task.loss(buffer.sample())
    if isinstance(task, NoTask):
        assert not loss.requires_grad and not task.own_parameters() and not task.param_groups(1e-3)
        return
    loss.backward()
    assert all(value.grad is not None for value in encoder.parameters())
    own = task.own_parameters()
    assert own and all(value.grad is not None for value in own)
    assert not set(own) & set(encoder.parameters())


def test_a_task_says_whether_it_needs_the_batch_of_rl(name: str):
    buffer, encoder = make_parts(name)
    task = make(name, encoder, buffer)
    assert task.reads_batch == (name in ("curl", "spr", HEADLESS))
    if task.reads_batch:
        with pytest.raises(ValueError, match=r"task\.loss\(buffer\.sample\(\)\)"):
            task.sample()
    else:
        task.sample()


def test_the_coefficient_scales_the_loss(name: str):
    if name == "none":
        assert make(name, *make_parts(name)[::-1]).loss() == 0
        return
    buffer, encoder = make_parts(name)
    task = make(name, encoder, buffer)
    views = task.sample(buffer.sample())
    once = task(views.clone())["loss_auxiliary"]
    task.coeff *= 0.25
    torch.testing.assert_close(task(views)["loss_auxiliary"], 0.25 * once)


def test_slow_copies_move_towards_the_encoder_and_take_no_gradients(name: str):
    buffer, encoder = make_parts(name)
    task = make(name, encoder, buffer)
    trained = set(task.own_parameters()) | set(encoder.parameters())

    def slow() -> dict[str, torch.Tensor]:
        state = {
            key: value for key, value in task.state_dict(keep_vars=True).items() if isinstance(value, torch.Tensor)
        }
        return {
            key: value.clone() for key, value in state.items() if value not in trained and value.is_floating_point()
        }

    before = slow()
    with torch.no_grad():
        for value in trained:
            value.add_(1.0)
    task.update_targets()
    after = slow()
    assert before.keys() == after.keys()
    moved = [key for key in before if not torch.equal(before[key], after[key])]
    has_copies = any(isinstance(part, MomentumCopy) for part in task.modules())
    assert bool(moved) == (has_copies or any("target" in key for key in before))


def test_with_a_target_encoder_the_agent_moves_it(name: str):
    buffer, encoder = make_parts(name)
    target = MomentumCopy(encoder, tau=0.05)
    task = make(name, encoder, buffer, target_encoder=None if name == "spr" else target)  # Rainbow has none
    before = [value.clone() for value in target.parameters()]
    task.loss(buffer.sample())
    task.update_targets()
    assert all(torch.equal(old, new) for old, new in zip(before, target.parameters(), strict=True))
    assert not any(value.requires_grad for value in target.parameters())


def test_a_saved_task_continues(name: str):
    def train(task: AuxiliaryTask, encoder: PixelEncoder, buffer: FrameReplayBuffer, seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        loss = task.loss(buffer.sample())
        if loss.requires_grad:
            parameters = [*encoder.parameters(), *task.own_parameters()]
            for value, gradient in zip(
                parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True
            ):
                value.data -= 0.1 * gradient
        task.update_targets()
        return loss.detach()

    buffer, encoder = make_parts(name)
    task = make(name, encoder, buffer)
    train(task, encoder, buffer, 1)
    other_encoder = make_parts(name)[1]
    other = make(name, other_encoder, buffer) if name != "curl" else task
    other_encoder.load_state_dict(encoder.state_dict())
    if other is not task:
        other.load_state_dict(task.state_dict())
        for seed in (2, 3):
            assert torch.equal(train(other, other_encoder, buffer, seed), train(task, encoder, buffer, seed))


def test_the_schedule_is_for_the_tasks_own_groups():
    buffer, encoder = make_buffer(), make_encoder()
    task = make("mcurl", encoder, buffer)
    task.warmup_updates, task.warmup_initial_scale = 10, 0.5
    groups = [{"params": list(encoder.parameters())}, *task.param_groups(1e-2)]
    optimizer = torch.optim.Adam(groups, lr=1e-3)
    schedule = task.make_schedule(optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([1e-3, 5e-3])
    for _ in range(40):
        optimizer.step()
        schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([1e-3, 5e-3])  # sqrt(10 / 40)
    task.warmup_updates = None
    assert task.make_schedule(optimizer) is None


def test_curl_takes_its_views_from_the_batch_of_rl():
    buffer, encoder = make_buffer(), make_encoder()
    task = ContrastiveTask(encoder, buffer, augmentation=RandomCrop(20), share_query=True)
    batch = buffer.sample()
    assert batch["mcurl", "key_pixels"].shape == batch["pixels"].shape == (8, 2, 20, 20)
    assert ("mcurl", "query_pixels") not in batch.keys(True, True)
    assert (batch["mcurl", "key_pixels"] != batch["pixels"]).flatten(1).any(1).any()  # another crop
    task.loss(batch).backward()
    with pytest.raises(ValueError, match="task.loss\\(buffer.sample\\(\\)\\)"):
        task.loss()
    with pytest.raises(KeyError, match="key_pixels"):
        task.loss(TensorDict({"pixels": batch["pixels"]}, [8]))


@pytest.mark.parametrize(
    ("made", "options", "answer"),
    [
        (MaskedContrastiveTask, {"mask_ratio": 0.0}, "mask_ratio=0.0; it must be above 0 and at most 1"),
        (MaskedContrastiveTask, {"tau": 0.0}, "tau=0.0; it must be above 0"),
        (MaskedContrastiveTask, {"coeff": float("nan")}, "coeff=nan; it must be at least 0 and finite"),
        (MaskedContrastiveTask, {"projection": "mlp"}, "projection='mlp'; choose one of"),
        (MaskedContrastiveTask, {"warmup_updates": 0}, "warmup_updates=0; it must be at least 1"),
        (ContrastiveTask, {"views": "half"}, "views='half'; choose one of"),
        (ContrastiveTask, {"coeff": -1.0}, "coeff=-1.0; it must be at least 0"),
    ],
)
def test_bad_settings_name_themselves(made, options, answer):
    with pytest.raises(ValueError, match=answer):
        made(make_encoder(), make_buffer(), **options)
