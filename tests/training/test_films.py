"""Films: the screen as people see it, beside what the agent sees, at the speed of the environment."""

from __future__ import annotations

import subprocess
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from mcurl_torchrl import make_atari_env, make_dmc_env, make_pixel_env
from mcurl_torchrl.modules import GaussianPolicy
from mcurl_torchrl.training import Evaluation, RunPlan, TrainingRun, evaluate
from mcurl_torchrl.training import evaluation as evaluation_module
from mcurl_torchrl.training.trackers import Tracker, Trackers
from mcurl_torchrl.training.videos import side_by_side
from tests.envs.test_dmc import actions_of, play
from tests.envs.tiny import Tiny
from tests.videos import read_video


def as_uint8(*shape: int) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8)


def zeros(observations: Tensor) -> Tensor:
    return torch.zeros(len(observations), 2)


# -- what environments draw --------------------------------------------------------------------------------------------


def test_dmc_draws_a_larger_picture_and_the_agent_sees_what_it_saw() -> None:
    """Drawing changes neither the observations nor what happens."""
    quick = {"action_repeat": 8, "image_size": 60, "num_frames": 1, "shadows": False, "multisampling": False}
    watched, plain = make_dmc_env("cartpole-swingup", **quick), make_dmc_env("cartpole-swingup", **quick)
    actions = actions_of(plain, 3)
    screens = []
    step = watched.reset()
    found = [step["pixels"]]
    for action in actions:
        screens.append(watched.rendered_screen())
        step = watched.step(step.set("action", action))["next"]
        found.append(step["pixels"])
    assert torch.equal(torch.stack(found), play(plain, actions)["pixels"])
    assert all(screen.shape == (240, 320, 3) and screen.dtype == np.uint8 for screen in screens)
    # The same scene at the same moment: the middle of the picture, made as small as the agent's, looks like it.
    for screen, frame in zip(screens, found, strict=False):
        middle = torch.from_numpy(screen[:, 40:280].copy()).permute(2, 0, 1)[None].float()
        small = torch.nn.functional.interpolate(middle, (60, 60), mode="bilinear", antialias=True)[0]
        assert (small - frame.float()).abs().mean() < 12
    assert not np.array_equal(screens[0], screens[-1])
    assert watched.agent_steps_per_second == pytest.approx(12.5)  # 100 control steps a second, eight at a time


def test_states_are_not_drawn() -> None:
    env = make_dmc_env("cartpole-swingup", from_pixels=False, action_repeat=500)
    seen = evaluate(lambda states: torch.zeros(1, 1), env, episodes=1, seed=1, record=True, observation_key="state")
    assert seen.screens == [] and len(seen.frames) == 2


@pytest.mark.parametrize("frame_skip", [1, 4])
def test_atari_screens_are_those_of_a_coloured_console(frame_skip: int) -> None:
    """What flickers is drawn in every other frame; the agent's maximum of two frames shows it, and so does the film."""
    options = {"training": False, "num_frames": 1, "frame_skip": frame_skip, "max_noops": 0, "image_size": 84}
    grey, plain = make_atari_env("MsPacman", **options), make_atari_env("MsPacman", **options)
    colored = make_atari_env("MsPacman", grayscale=False, **options)
    screens, kept = [], type(colored)._observation

    def keep(env, screen, flags):
        screens.append(screen.transpose(1, 2, 0).copy())
        return kept(env, screen, flags)

    colored._observation = keep.__get__(colored)
    envs = (grey, plain, colored)
    steps = [env.reset() for env in envs]
    for number in range(30):
        assert np.array_equal(grey.rendered_screen(), screens[-1]), number
        assert torch.equal(steps[0]["pixels"], steps[1]["pixels"])
        action = torch.tensor(number % 9)
        steps = [env.step(step.set("action", action))["next"] for env, step in zip(envs, steps, strict=True)]
    assert screens[-1].shape == (210, 160, 3)
    assert grey.agent_steps_per_second == 60 / frame_skip
    grey.reset(), colored.reset()
    assert np.array_equal(grey.rendered_screen(), screens[-1])  # nothing of the game before


@pytest.fixture
def registered():
    gymnasium.register("mcurl/Drawn-v0", Tiny)
    gymnasium.register("mcurl/Silent-v0", _Silent)
    gymnasium.register("mcurl/Stubborn-v0", lambda: Tiny())  # has the mode, does not take the keyword
    yield
    for name in ("Drawn", "Silent", "Stubborn"):
        del gymnasium.registry[f"mcurl/{name}-v0"]


class _Silent(Tiny):
    metadata = {"render_modes": []}


@pytest.mark.usefixtures("registered")
def test_gymnasium_environments_draw_what_they_can() -> None:
    drawn = make_pixel_env("mcurl/Drawn-v0", film=True, image_size=8, action_repeat=2)
    drawn.reset()
    assert drawn.rendered_screen().shape == (12, 12, 3)
    assert drawn.agent_steps_per_second == 0.5  # it says render_fps=1
    stubborn, silent = (make_pixel_env(f"mcurl/{name}-v0", film=True) for name in ("Stubborn", "Silent"))
    for env in (make_pixel_env("mcurl/Drawn-v0"), stubborn, silent):
        env.reset()
        assert env.rendered_screen() is None
    assert silent.agent_steps_per_second is None
    both = make_pixel_env("mcurl/Drawn-v0", render=True, image_size=8)  # the agent sees the drawing, made small
    both.reset()
    renders = both.base_env._env.env.unwrapped.renders
    assert both.rendered_screen().shape == (12, 12, 3) and both.base_env._env.env.unwrapped.renders == renders


# -- the film ----------------------------------------------------------------------------------------------------------


def test_side_by_side() -> None:
    screen, frame = as_uint8(50, 40, 3), as_uint8(1, 20, 20)
    (picture,) = side_by_side([screen.numpy()[::-1]], [frame])
    assert picture.shape == (50, 40 + 8 + 40, 3)
    assert torch.equal(picture[:, :40], screen.flip(0))
    assert (picture[:, 40:48] == 0).all() and (picture[:5, 48:] == 0).all() and (picture[45:, 48:] == 0).all()
    assert torch.equal(picture[5:45:2, 48::2], frame[0, ..., None].expand(-1, -1, 3))
    (picture,) = side_by_side([as_uint8(10, 10, 3)], [as_uint8(4, 12, 12)])  # larger than the screen, with an alpha
    assert picture.shape == (12, 30, 3)
    with pytest.raises(ValueError, match="longer|shorter"):
        list(side_by_side([screen, screen], [frame]))


def test_an_evaluation_films_its_first_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_pixel_env(Tiny(length=6, render_mode="rgb_array"), num_frames=2)
    seen = evaluate(zeros, env, episodes=2, seed=1, num_frames=2, record=True)
    assert len(seen.screens) == len(seen.frames) == 6 and seen.steps_per_second == 1
    for number, (screen, frame) in enumerate(zip(seen.screens, seen.frames, strict=True)):
        assert screen[0, 0, 1] == number == frame[1, 0, 0]  # of the same moment
    assert next(iter(seen.film())).shape == (12, 32, 3)
    assert Evaluation([1.0], [1], seen.frames).film() is seen.frames  # nothing was drawn
    monkeypatch.setattr(evaluation_module, "_FILMED_STEPS", 4)
    short = evaluate(zeros, env, episodes=1, seed=1, num_frames=2, record=True)
    assert len(short.screens) == len(short.frames) == 4 and short.lengths == [6]


def told_by_ffmpeg(path: Path) -> str:
    import imageio_ffmpeg

    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-hide_banner", "-i", str(path)]
    return subprocess.run(command, capture_output=True, text=True).stderr


def test_a_run_films_at_the_speed_of_the_environment(tmp_path: Path) -> None:
    class Fast(Tiny):
        metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    logged: dict[str, dict[int, float]] = {}

    def log(step: int, metrics) -> None:
        for name, value in metrics.items():
            logged.setdefault(name, {})[step] = value

    env = make_pixel_env(Fast(render_mode="rgb_array"), action_repeat=2)
    plan = RunPlan("fast", 1, total_agent_steps=4, evaluation_interval=4, checkpoint_interval=100, action_repeat=2)
    plan = RunPlan(**{**vars(plan), "log_interval": 2, "evaluation_episodes": 3, "num_frames": 3})
    tracker = Tracker("test", log, lambda *_: None, lambda failed: None)
    run = TrainingRun(tmp_path, plan, progress=False, trackers=Trackers([tracker]))
    run.track(GaussianPolicy([4], 1, hidden_dim=4))
    run.begin(zeros, env)
    for step in run.agent_steps():
        with run.timed("env"):
            sum(range(1000))
        run.finish_step(step, zeros, env)
    told = told_by_ffmpeg(run.directory.videos / "env_steps_8.mp4")
    assert " 5 fps" in told
    assert read_video(run.directory.videos / "env_steps_8.mp4").shape == (5, 3, 264, 704)  # 12 x 32, enlarged by 22
    # The same numbers for all trackers: how far the returns lie apart, and the speed.
    returns = [15 + 40, 15 + 40, 15 + 40]
    assert logged["evaluation/return"] == {0: sum(returns) / 3, 8: sum(returns) / 3}
    assert {"evaluation/return_lowest", "evaluation/return_highest", "evaluation/return_std"} <= set(logged)
    assert logged["evaluation/return_std"] == {0: 0.0, 8: 0.0}
    assert set(logged["speed/env_steps_per_second"]) == {4, 8}
    for step, speed in logged["speed/env_steps_per_second"].items():
        assert speed == pytest.approx(2 * 1000 / logged["speed/milliseconds_env"][step])
