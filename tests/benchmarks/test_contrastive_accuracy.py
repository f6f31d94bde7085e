"""benchmarks/contrastive_accuracy.py measures the accuracy, and draws its figure from the saved numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import contrastive_accuracy
import pytest

from mcurl_torchrl import FrameReplayBuffer


@pytest.fixture(scope="module")
def buffer() -> FrameReplayBuffer:
    steps, contrastive_accuracy.STEPS = contrastive_accuracy.STEPS, 60
    try:
        return contrastive_accuracy.play()
    finally:
        contrastive_accuracy.STEPS = steps


def test_the_kept_numbers_are_those_of_the_settings() -> None:
    measured = contrastive_accuracy.read_measured()
    assert list(measured) == list(contrastive_accuracy.SETTINGS)
    for name, points in measured.items():
        updates = contrastive_accuracy.SETTINGS[name].get("updates", 2000)
        assert [update for update, _ in points] == list(range(50, updates + 1, 50))


def test_a_loss_starts_at_chance(buffer: FrameReplayBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contrastive_accuracy, "UPDATES_PER_POINT", 1)
    (point,) = contrastive_accuracy.measure(buffer, updates=1)
    assert point["loss_auxiliary"] == pytest.approx(math.log(128), abs=0.2)
    assert set(point) == {"update", *contrastive_accuracy.METRICS}


def test_the_figure(figures: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(contrastive_accuracy, "FIGURE", tmp_path / "accuracy.png")
    contrastive_accuracy.draw()
    alone, beside = figures[0].axes
    assert len(alone.lines) == len(contrastive_accuracy.SETTINGS) + 1
    assert [line.get_ydata()[0] for line in beside.lines[1::2]] == [1 / 128, 1 / 32]
    assert (tmp_path / "accuracy.png").stat().st_size > 10_000
