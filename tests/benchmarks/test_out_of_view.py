"""benchmarks/out_of_view.py says when the cart has left the picture."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import out_of_view
import pytest

from mcurl_torchrl import make_dmc_env

ROOT = Path(__file__).resolve().parents[2]
IMAGE = 200


@pytest.mark.parametrize("position", [-1.2, 0.5, 1.5])
def test_it_finds_the_cart_where_the_renderer_draws_it(position: float) -> None:
    env = make_dmc_env("cartpole-swingup", image_size=IMAGE, num_frames=1, shadows=False)
    env.reset()
    pictures = []
    for place in (position, 50):  # at 50 m there is no cart in the picture
        with env.physics.reset_context():
            env.physics.data.qpos[:] = [place, 0]  # the pole stands above the cart
        pictures.append(env.physics.render(IMAGE, IMAGE, camera_id=0).astype(int))
        if place == position:
            seen = [out_of_view.in_view(env.physics, 0, width / IMAGE) for width in range(IMAGE + 1)]
    columns = np.abs(pictures[0] - pictures[1]).sum((0, 2))
    column = (columns * np.arange(IMAGE)).sum() / columns.sum()
    from_centre = abs(column - (IMAGE - 1) / 2)
    assert seen.index(True) == pytest.approx(2 * from_centre, abs=4)
    assert seen == sorted(seen)  # a larger crop never shows less


def test_the_second_camera_always_shows_the_cart() -> None:
    env = make_dmc_env("cartpole-swingup", from_pixels=False)
    env.reset()
    for position in (-1.8, 0, 1.8):
        with env.physics.reset_context():
            env.physics.data.qpos[0] = position
        assert out_of_view.in_view(env.physics, 1, 0.05)


def test_the_guide_shows_the_kept_shares() -> None:
    kept = json.loads((ROOT / "benchmarks" / "results" / "out_of_view.json").read_text())["rows"]
    assert [(row["image_size"], row["crop_size"]) for row in kept] == 2 * out_of_view.CROPS
    guide = (ROOT / "docs" / "guides" / "presets.md").read_text()
    for row, following in zip(kept[:3], kept[3:], strict=True):
        shares = f"{row['out_of_view']:.0%} | {following['out_of_view']:.0%}".replace("%", " %")
        assert f"| {row['image_size']}, {row['crop_size']}" in guide and f"| {shares} |" in guide, row
