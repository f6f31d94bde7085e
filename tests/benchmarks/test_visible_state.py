"""benchmarks/visible_state.py teaches encoders the simulator's state."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import visible_state

ROOT = Path(__file__).resolve().parents[2]


def test_observations_of_all_sizes_show_the_same_states() -> None:
    small, large = visible_state.observe(24, 4), visible_state.observe(48, 4)
    assert small[0].shape == (4, 9, 24, 24) and large[0].shape == (4, 9, 48, 48)
    torch.testing.assert_close(small[1], large[1], rtol=0, atol=0)
    shrunk, frames = torch.nn.functional.avg_pool2d(large[0].float(), 2), small[0].float()
    shrunk, frames = shrunk - shrunk.mean(0), frames - frames.mean(0)  # only carts and poles are left
    assert (shrunk - frames).square().sum() < 0.3 * frames.square().sum()


def test_what_is_in_the_picture_is_learned_and_what_is_not_is_not() -> None:
    torch.manual_seed(0)
    states = torch.randn(500, 5)
    pixels = torch.randint(100, 156, [1, 9, 24, 24], dtype=torch.uint8).repeat(500, 1, 1, 1)
    pixels[:, ::2, :, :12] = (128 + 40 * states[:, :1, None, None]).clamp(0, 255).to(torch.uint8)  # shows the first
    (scores,) = visible_state.teach(pixels, states, crop_size=20, num_filters=8, points=[150])
    assert scores["position"] > 0.8
    assert scores["cosine"] < 0.2


def test_the_guide_shows_the_kept_numbers_of_all_sizes() -> None:
    rows = json.loads((ROOT / "benchmarks" / "results" / "visible_state.json").read_text())["rows"]
    last = [row for row in rows if row["updates"] == 400]
    assert [(row["image_size"], row["crop_size"], row["filters"]) for row in last] == visible_state.SIZES
    guide = (ROOT / "docs" / "guides" / "presets.md").read_text()
    for row in last:
        scores = " | ".join(f"{row[name]:.2f}" for name in visible_state.STATES)
        assert f"| {scores} | {row['cpu_ms_per_update']:.0f} ms |" in guide, row
