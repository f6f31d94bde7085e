"""Each example runs from the command line, is short, and prints the numbers that its docstring describes."""

import importlib.util
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from tests.warm_start import run_python

REPO = Path(__file__).resolve().parents[1]
WITH_OTHER_PACKAGES = {"crafter_env.py"}  # tests/envs/test_real_envs.py runs it
EXAMPLES = sorted(path for path in (REPO / "examples").glob("*.py") if path.name not in WITH_OTHER_PACKAGES)
SMALL_RUNS = {
    "compose_ddpg.py": ["--steps", "240"],
    "plain_dqn.py": ["--steps", "300"],
    "replay_demo.py": ["--steps", "60"],
    "slices_for_cpc.py": ["--updates", "60"],
    "stock_buffer.py": ["--updates", "60"],
    "td3_collector.py": ["--steps", "150"],
}
MAX_LINES = 120
NUMBER = r"-?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf)"


def run(name: str, cwd: Path) -> str:
    # One thread: where several examples share few cores, threads that wait for each other take several times as long.
    environment = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
    script = REPO / "examples" / name
    if "dm_control" in script.read_text(encoding="utf-8"):  # it crashes if it imports a renderer too early
        command = [sys.executable, script, *SMALL_RUNS[name]]
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    else:
        done = run_python(script, *SMALL_RUNS[name], cwd=cwd, environment=environment)
    assert done.returncode == 0, f"{done.args} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def column(label: str, printed: str) -> list[float]:
    """What stands behind a label, line by line."""
    return [float(value) for value in re.findall(rf"(?m)(?:^|  ){label} +({NUMBER})(?=  |$)", printed)]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(name).stem, REPO / "examples" / name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES} == set(SMALL_RUNS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_stays_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < MAX_LINES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_says_how_to_run_it(path: Path) -> None:
    assert f"    python examples/{path.name} [--" in path.read_text(encoding="utf-8")


def test_replay_demo(tmp_path: Path) -> None:
    printed = run("replay_demo.py", tmp_path)
    rows = re.findall(r"(\d+) rows", printed)
    assert rows[-1] == rows[-2], "as many rows are loaded as were collected"
    assert (tmp_path / "replay_demo.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("name", "label", "fall"), [("stock_buffer.py", "contrastive loss", 0.3), ("slices_for_cpc.py", "loss", 1.0)]
)
def test_loss_falls(name: str, label: str, fall: float, tmp_path: Path) -> None:
    losses = column(label, run(name, tmp_path))
    assert len(losses) > 2
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0] - fall


def test_plain_dqn_needs_no_tensordict_and_prints_finite_numbers(tmp_path: Path) -> None:
    source = (REPO / "examples" / "plain_dqn.py").read_text(encoding="utf-8")
    assert "tensordict" not in source.lower()
    printed = run("plain_dqn.py", tmp_path)
    assert column("step", printed) == [210, 240, 270, 300]
    for label in ("return", "td loss", "contrastive loss"):
        values = column(label, printed)
        assert len(values) == 4 and all(map(math.isfinite, values)), label
    contrastive = column("contrastive loss", printed)
    assert contrastive[-1] < contrastive[0] - 1


def test_plain_dqn_knows_where_the_ball_is() -> None:
    example = load("plain_dqn.py")
    env = example.Catch()
    for seed in range(20):
        env.reset(seed=seed)
        for _ in range(example.CELLS - 1):
            _, reward, terminated, truncated, _ = env.step(1 + int(np.sign(env.ball - env.paddle)))
        assert reward == 1 and terminated and not truncated, "who follows the ball catches it"


def test_td3_collector_prints_finite_numbers(tmp_path: Path) -> None:
    printed = run("td3_collector.py", tmp_path)
    assert column("step", printed) == [100, 150]
    for label in ("return", "td loss", "contrastive loss", "accuracy"):
        values = column(label, printed)
        assert len(values) == 2 and all(map(math.isfinite, values)), label


def test_td3_collector_teaches_the_encoder_by_critics_and_contrast_but_not_by_the_actor() -> None:
    example = load("td3_collector.py")
    buffer = example.make_replay(capacity=200)
    steps = example.make_env("cartpole-swingup", 0).rollout(2 * example.SLICE_LEN)
    buffer.extend(steps)
    encoder, actor, td3, task = example.make_networks(1, buffer)
    losses = example.compute_losses(buffer.sample(), encoder, td3, task, with_actor=True)
    parts = {"encoder": list(encoder.parameters()), "actor": list(actor.parameters())}
    taught = {
        (loss, name)
        for loss in ("loss_qvalue", "loss_auxiliary", "loss_actor")
        for name, parameters in parts.items()
        if any(
            gradient is not None and bool(gradient.any())
            for gradient in torch.autograd.grad(losses[loss], parameters, retain_graph=True, allow_unused=True)
        )
    }
    assert taught == {("loss_qvalue", "encoder"), ("loss_auxiliary", "encoder"), ("loss_actor", "actor")}
    every = torch.optim.Adam(example.mcurl.joint_parameters(td3, task)).param_groups[0]["params"]
    assert {id(value) for part in parts.values() for value in part} <= {id(value) for value in every}


def test_compose_ddpg_prints_finite_numbers(tmp_path: Path) -> None:
    printed = run("compose_ddpg.py", tmp_path)
    assert column("step", printed) == [120, 240]
    for label in ("return", "td loss", "contrastive loss", "accuracy on zeroed"):
        values = column(label, printed)
        assert len(values) == 2 and all(map(math.isfinite, values)), label
    contrastive = column("contrastive loss", printed)
    assert contrastive[1] < contrastive[0]


def test_compose_ddpg_teaches_the_encoder_by_critic_and_contrast_but_not_by_the_actor() -> None:
    example = load("compose_ddpg.py")
    encoder, actor, ddpg, task = example.make_networks(example.make_replay(capacity=100))
    batch_size, num_images = example.BATCH_SIZE, example.NUM_SLICES * example.SLICE_LEN
    shape = (3 * example.NUM_FRAMES, example.CROP_SIZE, example.CROP_SIZE)

    def images(count: int) -> torch.Tensor:
        return torch.randint(256, (count, *shape), dtype=torch.uint8)

    done = torch.zeros(batch_size, 1, dtype=torch.bool)
    outcome = {"pixels": images(batch_size), "reward": torch.randn(batch_size, 1), "done": done, "terminated": done}
    action = torch.rand(batch_size, example.ACTION_DIM) * 2 - 1
    batch = TensorDict({"pixels": images(batch_size), "action": action, "next": outcome}, [batch_size])
    views = {name: images(num_images) for name in ("query_pixels", "key_pixels")}
    slices = TensorDict({"mcurl": {**views, "masked": torch.rand(num_images) < example.MASK_RATIO}}, [num_images])

    slices = slices.reshape(example.NUM_SLICES, example.SLICE_LEN)
    losses = example.compute_losses(batch, slices, encoder, ddpg, task)
    learns = {"encoder": list(encoder.parameters()), "actor": list(actor.parameters())}
    taught = {
        (loss, name): any(
            gradient is not None and bool(gradient.any())
            for gradient in torch.autograd.grad(losses[loss], parameters, retain_graph=True, allow_unused=True)
        )
        for loss in ("loss_qvalue", "loss_auxiliary", "loss_actor")
        for name, parameters in learns.items()
    }
    assert {pair for pair, has_gradient in taught.items() if has_gradient} == {
        ("loss_qvalue", "encoder"),
        ("loss_auxiliary", "encoder"),
        ("loss_actor", "actor"),
    }


def test_compose_ddpg_changes_the_encoder_that_the_policy_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("compose_ddpg.py")
    make, encoders, before = example.make_networks, [], []

    def make_networks(buffer: object) -> tuple:
        made = make(buffer)
        encoders.append(made[0])
        before.extend(parameter.detach().clone() for parameter in made[0].parameters())
        return made

    monkeypatch.setattr(example, "make_networks", make_networks)
    monkeypatch.setattr(example, "UPDATES_PER_BATCH", 2)
    threads = torch.get_num_threads()
    try:
        example.main(steps=example.STEPS_PER_BATCH, seed=0)
    finally:
        torch.set_num_threads(threads)
    after = list(encoders[0].parameters())
    assert all(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
