"""The benchmark of the learners at tiny sizes: what it counts, what it splits, and that it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from unittest import mock

import learner
import pytest
import setups
import yaml
from setups import rainbow, sac


def layers_gflop(image: int, filters: int, num_layers: int, channels: int = 9) -> tuple[float, float]:
    """The work of the convolutions on one image, forwards, and of the first of them."""
    flops, side, inputs = [], image, channels
    for layer in range(num_layers):
        side = (side - 3) // (2 if layer == 0 else 1) + 1
        flops.append(2 * side * side * filters * inputs * 9)
        inputs = filters
    return sum(flops) / 1e9, flops[0] / 1e9


def plain_sac_gflop(cfg) -> float:
    """The work of an update, from the layers' shapes; without the Transformer, which is nothing beside the rest."""
    encoder, batch = cfg.encoder, cfg.sac.batch_size
    convs, first = layers_gflop(encoder.crop_size, encoder.num_filters, encoder.num_layers)
    side = (encoder.crop_size - 3) // 2 + 1 - 2 * (encoder.num_layers - 1)
    linear = 2 * side * side * encoder.num_filters * encoder.feature_dim / 1e9
    forward = convs + linear
    both_ways = 3 * forward - first  # nobody asks for gradients of pixels
    width, latent, action = cfg.sac.hidden_dim, encoder.feature_dim, setups.SACLearner.action_dim
    critics = 2 * 2 * (width * (latent + action) + width * width + width) / 1e9
    actor = 2 * (width * latent + width * width + width * 2 * action) / 1e9
    critic_step = batch * (both_ways + 2 * forward + 4 * critics + actor)
    actor_step = batch * (2 * forward + linear + 3 * actor + 2 * critics)  # the actor's linear layer learns
    images = cfg.objective.num_slices * cfg.objective.slice_len
    return critic_step + actor_step / 2 + images * (both_ways + forward)


def test_the_plain_algorithm_at_the_papers_size():
    assert plain_sac_gflop(setups.settings("sac_mcurl", "env=cartpole-swingup")) == pytest.approx(247, abs=1)


def test_counted_flops_are_those_of_the_layers():
    sizes = ("encoder.crop_size=64", "env.image_size=72", "encoder.num_filters=16", "encoder.num_layers=3")
    case = learner.Case("sac", "mcurl", "smoke", 2)
    cfg = setups.settings("sac_mcurl", *case.overrides, *sizes)
    with mock.patch.object(learner.Case, "overrides", (*case.overrides, *sizes)):
        counted = learner.plain_gflop(case)
    assert counted == pytest.approx(plain_sac_gflop(cfg), rel=0.02)


@pytest.mark.parametrize(
    ("algorithm", "module", "parts"),
    [
        ("sac", sac, {"critic", "actor", "targets", "contrastive queries", "contrastive keys"}),
        ("rainbow", rainbow, {"value", "backward and clipping", "targets", "priorities", "contrastive keys"}),
    ],
)
def test_parts_of_an_update(algorithm, module, parts):
    case = learner.Case(algorithm, "mcurl", "smoke", 2)
    made = setups.make_learner(algorithm, *case.overrides)
    with mock.patch.object(module, "optimize", module.optimize):  # put back what the stopwatch leaves behind
        seconds = learner.seconds_by_part(made, 2)
    assert parts | {"sample", "optimizers", "other"} <= seconds.keys()
    assert all(value > 0 for value in seconds.values())


def test_nested_parts_are_counted_once():
    watch, times = setups.Stopwatch(), iter([0.0, 1.0, 3.0, 7.0])
    with mock.patch.object(setups.time, "perf_counter", lambda: next(times)), watch.part("outer"), watch.part("inner"):
        pass
    assert watch.seconds == {"outer": 1.0 + 4.0, "inner": 2.0}


@pytest.mark.parametrize(("updates", "expected"), [(1, (1, 2)), (2, (1, 2)), (12, (6, 2)), (240, (8, 30))])
def test_updates_come_in_pairs(updates, expected):
    assert learner.blocks(updates) == expected


@pytest.mark.slow
def test_it_runs(tmp_path):
    command = [sys.executable, learner.__file__, "--quick", "--only", "sac", "--threads", "1"]
    command += ["--json", tmp_path / "learner.json", "--plot", tmp_path / "learner.png"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "learner.json").read_text())
    assert written["machine"].keys() == {"cpu", "cores", "threads", "torch"}
    assert written["machine"]["threads"] == 1
    sac = written["sac"]
    utilisation = sac["gflop"] / sac["seconds_per_update"] / sac["gemm_gflops"]
    assert sac["effective_utilisation"] == pytest.approx(utilisation)
    assert sac["without"].keys() == sac["worth"].keys() == {"allocator"}
    assert sac["peak_memory_gb"] > sac["replay_in_peak_gb"] > 0
    assert (tmp_path / "learner.png").stat().st_size > 10_000
    assert "effective utilisation" in done.stdout


@pytest.mark.slow
def test_the_objectives_take_turns(tmp_path):
    command = [sys.executable, learner.__file__, "--objectives", "--quick", "--threads", "1", "--json"]
    done = subprocess.run([*command, tmp_path / "objectives.json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "objectives.json").read_text())
    assert written["machine"]["threads"] == 1
    for algorithm, (losses, _) in learner.OBJECTIVES.items():
        assert tuple(written[algorithm]) == losses
        for result in written[algorithm].values():
            assert result["ms"] > 0 and 0 < result["lowest"] <= result["times_mcurl"] <= result["highest"]
        assert written[algorithm]["mcurl"]["times_mcurl"] == 1


def test_sizes_are_those_of_the_suite_that_compares_them():
    suite = yaml.safe_load((Path(learner.__file__).parent / "suites" / "sac_follow_sizes.yaml").read_text())
    for experiment in suite["experiments"]:
        variants = {name: tuple(more) for name, more in experiment["variants"].items() if more}
        assert variants == {name: more for name, more in learner.SIZES.items() if more}


@pytest.mark.slow
def test_the_sizes_take_turns(tmp_path):
    command = [sys.executable, learner.__file__, "--sizes", "--quick", "--threads", "1", "--json"]
    done = subprocess.run([*command, tmp_path / "sizes.json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "sizes.json").read_text())["sac"]
    assert written.keys() == learner.SIZES.keys() and written["as it is"]["times_mcurl"] == 1
