"""benchmarks/probe_table.py runs the missing cases, and makes its table from the existing rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import probe_table
import pytest
import setups
import torch

from mcurl_torchrl.training import ProbeScore, Table
from mcurl_torchrl.training.tables import read


def rows(*seeds: int) -> list[dict[str, Any]]:
    """An error of seed + 10 * method + 100 * task."""
    return [
        {"task": task, "seed": seed, "method": method, "error": seed + 10 * m + 100 * t, "r2": 0.5, "cpu_seconds": 1.0}
        for seed in seeds
        for t, task in enumerate(probe_table.TASKS)
        for m, method in enumerate(probe_table.METHODS)
    ]


def test_what_is_missing_comes_seed_by_seed() -> None:
    first, second, third = probe_table.SEEDS
    assert len(list(probe_table.missing([]))) == 3 * 3 * 7
    left = list(probe_table.missing(rows(first)[:-1]))
    assert left[0] == ("walker-walk", first, "SPR") and {seed for _, seed, _ in left[1:]} == {second, third}
    assert not list(probe_table.missing(rows(first, second, third)))


def test_means_and_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_table, "SEEDS", (1, 2, 3))
    found = probe_table.estimates(rows(1, 2, 3), "error")
    half = 2.484  # Student's, of 1, 2, 3
    assert found["crop only"]["cheetah-run"].value == 112
    assert found["crop only"]["mean"].value == 112  # of 12, 112 and 212
    assert found["random"]["mean"].low == pytest.approx(102 - half, abs=1e-3)
    assert found["random"]["mean"].high == pytest.approx(102 + half, abs=1e-3)
    assert not probe_table.estimates(rows(1), "error")["SPR"]["mean"].has_interval
    assert probe_table.estimates(rows(1)[:-1], "error").keys() == probe_table.METHODS.keys() - {"SPR"}


def test_the_page_and_the_figure(tmp_path: Path) -> None:
    there = rows(*probe_table.SEEDS)
    page = probe_table.page(there)
    for method in probe_table.METHODS:
        assert page.count(f"\n| {method} | ") == 2
    probe_table.draw(there, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 5_000


def test_methods_train_the_same_encoder_on_the_same_frames(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(probe_table, "UPDATES", 2)
    small = ["agent=sac_cpu", "preset=smoke", "env.image_size=60", "encoder.crop_size=50", "encoder.num_filters=16"]
    small += ["encoder.num_layers=4", "encoder.feature_dim=50", "updates=2", "data.agent_steps=40", "probe.episodes=0"]
    monkeypatch.setattr(probe_table, "PRETRAIN", small)
    monkeypatch.setattr(probe_table, "OBSERVATIONS", 8)
    probe_table.play("cartpole-swingup", 1, tmp_path / "frames")
    chosen = ("cartpole-swingup", 1, tmp_path / "frames")
    random, again, crop, curl = (
        probe_table.train(method, *chosen, tmp_path / f"{number}")
        for number, method in enumerate(("random", "random", "crop only", "CURL"))
    )
    states = [encoder.state_dict() for encoder in (random, again, crop, curl)]
    assert all(state.keys() == states[0].keys() for state in states)
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    for trained in states[2:]:  # from another draw of weights, or moved: at any rate not the same
        assert any(not torch.equal(value, states[0][name]) for name, value in trained.items())


def test_a_table_goes_on_where_it_was_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = probe_table.SEEDS[0]
    table = Table(tmp_path / "results.csv")
    for row in rows(first)[:-1]:
        table.append(row)
    trained: list[tuple[str, str, int]] = []
    monkeypatch.setattr(probe_table, "SEEDS", (first,))
    monkeypatch.setattr(setups, "prepare_process", lambda threads: None)
    monkeypatch.setattr(probe_table, "fresh_frames", lambda task: task)
    monkeypatch.setattr(probe_table, "play", lambda task, seed, folder: folder.mkdir())
    monkeypatch.setattr(probe_table, "train", lambda method, task, seed, *folders: trained.append((method, task, seed)))
    monkeypatch.setattr(probe_table, "probe_encoder", lambda encoder, data: ProbeScore(0.25, 0.5, []))
    probe_table.run(table)
    assert trained == [("SPR", "walker-walk", first)]
    last = read(table.path)[-1]
    assert (last["task"], last["method"], last["error"], last["r2"]) == ("walker-walk", "SPR", 0.5, 0.25)
    probe_table.run(table)
    assert len(trained) == 1
