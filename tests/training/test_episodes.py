"""Episodes from seeds of their own: taken up in the middle, begun by their number, failing."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from mcurl_torchrl import make_pixel_env
from mcurl_torchrl.training import (
    EnvironmentFailed,
    EpisodeStream,
    ReplayedDifferently,
    derive_seed,
    seed_everything,
)


class Walk(gymnasium.Env):
    """A random walk, drawn as a grey level; chance comes from the environment's own generator, or from elsewhere."""

    observation_space = gymnasium.spaces.Box(0, 255, (12, 12, 3), np.uint8)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, *, length: int = 10, raise_at: int | None = None, chance: np.random.Generator | None = None):
        self.length, self.raise_at, self.chance = length, raise_at, chance

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = int(self.np_random.integers(50, 200)), 0
        return self._image(), {}

    def step(self, action):
        self.steps += 1
        if self.steps == self.raise_at:
            raise ConnectionError("the simulator is gone")
        self.place += int((self.chance or self.np_random).integers(-20, 20)) + int(10 * float(action[0]))
        return self._image(), self.place / 100, False, self.steps == self.length, {}

    def _image(self):
        return np.full((12, 12, 3), self.place % 256, np.uint8)


def make_stream(seed: int = 1, **settings) -> EpisodeStream:
    return EpisodeStream(make_pixel_env(Walk(**settings), num_frames=2), seed=seed)


def act(observation: torch.Tensor) -> torch.Tensor:
    return torch.tensor([observation.float().mean().item() / 255])


def play(stream: EpisodeStream, steps: int) -> list[tuple]:
    taken = (stream.step(act) for _ in range(steps))
    return [(step["next", "pixels"].flatten().tolist(), float(step["next", "reward"])) for step in taken]


def test_episodes_follow_from_the_seed_and_their_number():
    once, again, other = (play(make_stream(seed), 25) for seed in (1, 1, 2))
    assert once == again != other
    assert once[:10] != once[10:20]


@pytest.mark.parametrize("steps", [0, 1, 9, 10, 11, 20, 25])
def test_a_saved_stream_goes_on_where_it_was(steps: int):
    stream, resumed = make_stream(), make_stream(seed=5)
    play(stream, steps)
    play(resumed, 3)  # used before
    resumed.load_state_dict(stream.state_dict())
    assert (resumed.episode, resumed.last_return) == (stream.episode, stream.last_return)
    assert resumed.state_dict()["first_episode"] == stream.state_dict()["first_episode"]
    assert play(resumed, 15) == play(stream, 15)
    assert resumed.episode_return == stream.episode_return


def test_a_step_is_to_observe_and_to_take():
    stepped, taken = make_stream(), make_stream()
    for expected in (stepped.step(act) for _ in range(25)):
        observation = taken.observe()
        assert taken.observe() is observation  # no second reset
        step = taken.take(act(observation))
        assert torch.equal(observation, expected["pixels"])
        assert all(torch.equal(step[key], expected[key]) for key in ("action", ("next", "pixels"), ("next", "reward")))
    assert taken.state_dict()["episode"] == stepped.state_dict()["episode"] == 2


@pytest.mark.parametrize("steps", [0, 10])
def test_no_action_without_an_episode(steps: int):
    stream = make_stream()
    play(stream, steps)
    with pytest.raises(RuntimeError, match=r"no episode is under way; observe\(\) begins one"):
        stream.take(torch.zeros(1))
    play(stream, 1)


@pytest.mark.parametrize("steps", [0, 4, 10])
def test_an_episode_begun_by_its_number(steps: int):
    expected = play(make_stream(), 40)
    stream = make_stream()
    play(stream, steps)
    for episode in (2, 0):
        stream.begin(episode)
        assert (stream.episode, stream.episode_length, stream.episode_return) == (episode, 0, 0.0)
        assert play(stream, 15) == expected[10 * episode : 10 * episode + 15]  # and counts on from there
    resumed = make_stream()
    resumed.load_state_dict(stream.state_dict())
    assert play(resumed, 10) == play(stream, 10)


def test_an_environment_that_goes_another_way_is_reported():
    stream = make_stream(chance=np.random.default_rng(0))
    play(stream, 5)
    resumed = make_stream(chance=np.random.default_rng(1))
    with pytest.warns(ReplayedDifferently, match="episode 0.* 5 actions"):
        resumed.load_state_dict(stream.state_dict())
    play(resumed, 1)
    assert resumed.episode == 1 and resumed.episode_length == 1


def test_an_environment_that_ends_sooner_is_reported():
    stream = make_stream()
    play(stream, 5)
    resumed = make_stream(length=3)
    with pytest.warns(ReplayedDifferently):
        resumed.load_state_dict(stream.state_dict())
    play(resumed, 4)


def test_an_environment_that_fails_is_named():
    stream = make_stream(raise_at=4)
    play(stream, 3)
    with pytest.raises(EnvironmentFailed, match="episode 0 at step 4: ConnectionError: the simulator is gone"):
        play(stream, 1)
    play(stream, 2)
    assert stream.episode == 1 and stream.episode_length == 2


def test_batched_environments_are_refused():
    from torchrl.envs import SerialEnv

    env = SerialEnv(2, lambda: make_pixel_env(Walk()))
    with pytest.raises(ValueError, match=r"batch_size=\[2\]"):
        EpisodeStream(env, seed=1)
    env.close(raise_if_closed=False)


def test_seeds_for_different_purposes_differ():
    seeds = {derive_seed(*key) for key in ((1, "a"), (2, "a"), (1, "b"), (1, "a", 1), (1, "a", 2), (1, "a", 0, 1))}
    assert len(seeds) == 6 and all(0 <= seed < 2**31 for seed in seeds)


def test_seeding_everything():
    import random

    def draw() -> tuple:
        return torch.rand(1).item(), np.random.rand(), random.random()

    seed_everything(3)
    first = draw()
    seed_everything(3)
    assert draw() == first
    seed_everything(4)
    assert not set(draw()) & set(first)
