"""Environments that differ from their declared spaces, or cannot be trained on, are refused with a message."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torchrl.envs import GymWrapper

from mcurl_torchrl import make_pixel_env
from recipes.building import check_actions, make_env
from tests.envs.tiny import Tiny
from tests.recipes.running import SMALL, settings, train

REPO = Path(__file__).parents[2]


class Lies(Tiny):
    """Declares one dtype and returns another."""

    def __init__(self, convert, kind: str = "uint8") -> None:
        super().__init__(kind=kind)
        self.convert = convert

    def observe(self) -> np.ndarray:
        return self.convert(self.frame())


@pytest.mark.parametrize(
    ("convert", "kind", "message"),
    [
        (lambda frame: frame / 255, "uint8", r"declared uint8, but the environment returned float64 from 0 to 0.\d+"),
        (lambda frame: frame.astype(np.int64), "uint8", r"declared uint8, .* returned int64 from 0 to \d+"),
        (lambda frame: frame.astype(np.float32), "float32", r"declared float32 in \[0, 1\], .* float32 from 0 to \d+"),
        (lambda frame: frame / np.nan, "float32", r"declared .* returned float64 from nan to nan"),
        (lambda frame: frame, "float32", r"declared float32 in \[0, 1\], but the environment returned uint8"),
    ],
)
def test_an_image_of_another_dtype_than_declared_is_refused_when_it_comes(convert, kind: str, message: str) -> None:
    env = make_pixel_env(Lies(convert, kind))
    with pytest.raises(ValueError, match=f"the observation is {message}"):
        env.reset()


def test_the_refused_image_is_named() -> None:
    class Named(Lies):
        def __init__(self) -> None:
            super().__init__(lambda frame: frame / 255)
            self.observation_space = spaces.Dict({"eye": self.observation_space, "speed": spaces.Box(-1, 1, (3,))})

        def observe(self) -> dict[str, np.ndarray]:
            return {"eye": super().observe(), "speed": np.zeros(3, np.float32)}

    with pytest.raises(ValueError, match="the observation 'eye' is declared uint8"):
        make_pixel_env(Named()).reset()


def test_float32_declared_and_float64_returned_is_the_same_image() -> None:
    found = make_pixel_env(Lies(lambda frame: frame / 255, "float32"), seed=3).reset()["pixels"]
    assert torch.equal(found, make_pixel_env(Tiny(), seed=3).reset()["pixels"])


def test_images_of_a_torchrl_environment_are_checked_too() -> None:
    class Wrong(GymWrapper):
        def _reset(self, *args, **kwargs):
            step = super()._reset(*args, **kwargs)
            return step.set("pixels", step["pixels"].long())

    with pytest.raises(ValueError, match="the image 'pixels' is declared uint8, but .* int64 from 0 to"):
        make_pixel_env(Wrong(Tiny())).reset()


@pytest.mark.parametrize(
    ("shape", "accepted"),
    [((7, 7, 3), False), ((11, 40, 3), False), ((3, 11, 40), False), ((8, 8), False), ((12, 12, 3), True)],
)
def test_a_grid_of_symbols_is_no_image(shape: tuple[int, ...], accepted: bool) -> None:
    class Grid(Tiny):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = spaces.Dict({"image": spaces.Box(0, 255, shape, np.uint8)})

    if accepted:
        make_pixel_env(Grid())
        return
    for options in ({}, {"pixels_key": "image"}):
        with pytest.raises(ValueError, match="at least 12: less is a board or a grid of symbols, not an image"):
            make_pixel_env(Grid(), **options)


class Shows(Tiny):
    """Shows given images in turn, and the last of them from then on."""

    def __init__(self, *images: np.ndarray) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, images[0].shape, np.uint8)
        self.images = list(images)

    def observe(self) -> np.ndarray:
        return self.images.pop(0) if len(self.images) > 1 else self.images[0]


SYMBOLS = np.random.default_rng(1).integers(0, 11, (16, 16, 3), np.uint8)


@pytest.mark.parametrize("shape", [(16, 16, 3), (3, 16, 16), (16, 16), (64, 70, 1)])
def test_a_large_grid_of_symbols_is_refused_when_it_comes(shape: tuple[int, ...]) -> None:
    symbols = np.resize(SYMBOLS, shape)
    height, width = (size for size in shape if size > 3)
    said = rf"the image '\w+', {height} x {width}, has no number above 15 in its first 32 frames"
    for env in (Shows(symbols), GymWrapper(Shows(symbols))):
        with pytest.raises(ValueError, match=said):
            make_pixel_env(env).rollout(32, break_when_any_done=False)


def test_dark_images_are_no_symbols() -> None:
    bright = SYMBOLS + 5  # up to 15: one more number is needed
    bright[3, 4] = 16
    for taken in (np.full_like(SYMBOLS, 7), bright, np.resize(SYMBOLS, (65, 65, 3))):
        make_pixel_env(Shows(taken)).rollout(40, break_when_any_done=False)
    dark_later = make_pixel_env(Shows(bright, SYMBOLS), num_frames=1)
    assert dark_later.rollout(40, break_when_any_done=False)["pixels"].amax((1, 2, 3))[:2].tolist() == [16, 10]


def test_an_episode_may_begin_in_the_dark() -> None:
    """Of a resumed run, or of an evaluation, an episode that begins in the dark may be the first."""
    bright = np.full_like(SYMBOLS, 200)
    make_pixel_env(Shows(*[SYMBOLS] * 31, bright, SYMBOLS)).rollout(80, break_when_any_done=False)


def test_actions_of_several_parts_are_refused() -> None:
    parts = {"steer": spaces.Box(-1, 1, (1,)), "brake": spaces.Discrete(2)}
    for space in (spaces.Dict(parts), spaces.Tuple(list(parts.values()))):
        with pytest.raises(ValueError, match=rf"actions of several parts, {type(space).__name__}\(.*ActionWrapper"):
            make_pixel_env(Tiny(action_space=space))


def test_buttons_that_are_not_counted_from_zero_are_refused() -> None:
    """TorchRL ignores the start: the environment would get 0, and never 3."""
    with pytest.raises(ValueError, match=r"Discrete\(3, start=1\); TorchRL counts them from 0"):
        make_pixel_env(Tiny(action_space=spaces.Discrete(3, start=1)))


def test_several_buttons_at_once_are_not_called_continuous() -> None:
    env = make_pixel_env(Tiny(action_space=spaces.MultiDiscrete([3, 2])), categorical_actions=True)
    for discrete in (True, False):
        with pytest.raises(ValueError, match="takes several numbers at once"):
            check_actions(env, discrete=discrete, recipe="Rainbow", other="sac_mcurl")


# -- environments of one's own -----------------------------------------------------------------------------------------

MY_MODULE = """
import gymnasium
import numpy as np
from gymnasium import spaces


class MyEnv(gymnasium.Env):
    def __init__(self, size=36, render_mode=None):
        views = {name: spaces.Box(0, 255, (size, size, 3), np.uint8) for name in ("eye", "top")}
        self.observation_space, self.action_space = spaces.Dict(views), spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._views(), {}

    def step(self, action):
        self.steps += 1
        return self._views(), float(action[0]), False, self.steps == 40, {}

    def _views(self):
        return {name: np.full(view.shape, self.steps + 100 * (name == "top"), np.uint8)
                for name, view in self.observation_space.items()}


gymnasium.register("MyEnv-v0", MyEnv)
"""


def test_keyword_arguments_and_the_image_s_key_are_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_views.py").write_text(MY_MODULE.replace("MyEnv-v0", "MyViews-v0"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    cfg = settings(
        "env=gym", "env.id=my_views:MyViews-v0", "env.kwargs={size: 40}", "env.pixels_key=top", "preset=smoke"
    )
    env = make_env(cfg.env, training=True)
    assert env.base_env.observation_space["pixels"].shape == (40, 40, 3)
    assert (env.reset()["pixels"] == 100).all()
    with pytest.raises(ValueError, match=r"env_kwargs=\{'sise': 40\} do not fit env='my_views:MyViews-v0'"):
        make_pixel_env("my_views:MyViews-v0", env_kwargs={"sise": 40})
    for made in (Tiny(), GymWrapper(Tiny())):
        with pytest.raises(ValueError, match="env_kwargs=.* this environment is made already"):
            make_pixel_env(made, env_kwargs={"size": 40})


def test_a_module_of_the_current_folder_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "my_module.py").write_text(MY_MODULE)
    overrides = ["env=gym", "env.id=my_module:MyEnv-v0", "'env.kwargs={size: 40}'", "env.pixels_key=eye", *SMALL]
    overrides += ["evaluation.video=false", "evaluation.episodes=1", "threads=1", f"hydra.run.dir={tmp_path / 'run'}"]
    command = [sys.executable, str(REPO / "recipes" / "sac_mcurl.py"), *(line.strip("'") for line in overrides)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "finished" in done.stderr


def test_what_was_declared_is_said_where_a_run_ends(tmp_path: Path) -> None:
    gymnasium.register("mcurl/Lies-v0", lambda: Lies(lambda frame: frame / 255))
    try:
        with pytest.raises(SystemExit, match="the observation is declared uint8, but the environment returned float64"):
            train(tmp_path, "env=gym", "env.id=mcurl/Lies-v0", *SMALL)
    finally:
        del gymnasium.registry["mcurl/Lies-v0"]
