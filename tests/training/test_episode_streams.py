"""Several environments side by side: what a rollout holds, taken up in the middle, failing."""

from __future__ import annotations

import pytest
import torch
from torchrl.data import LazyTensorStorage

from mcurl_torchrl import FrameReplayBuffer, make_pixel_env
from mcurl_torchrl.training import EnvironmentFailed, EpisodeStream, EpisodeStreams, derive_seed
from tests.training.test_episodes import Walk, act

LENGTHS = (10, 7, 4)  # of the episodes, in each environment
KEYS = ("pixels", "action", ("next", "pixels"), ("next", "reward"), ("next", "done"), ("next", "truncated"))


def make_streams(seed: int = 1, lengths: tuple[int, ...] = LENGTHS, **settings) -> EpisodeStreams:
    envs = [make_pixel_env(Walk(length=length, **settings), num_frames=2) for length in lengths]
    return EpisodeStreams(envs, seed=seed)


def act_for_all(observations: torch.Tensor) -> torch.Tensor:
    return torch.stack([act(observation) for observation in observations])


def assert_same(ours, expected) -> None:
    assert ours.batch_size == expected.batch_size
    assert all(torch.equal(ours[key], expected[key]) for key in KEYS)


def test_each_environment_goes_its_own_way():
    rollout = make_streams().rollout(act_for_all, 23)
    assert rollout.batch_size == (3, 23)
    for number, length in enumerate(LENGTHS):
        env = make_pixel_env(Walk(length=length), num_frames=2)
        alone = EpisodeStream(env, seed=derive_seed(1, "environment", number))
        steps = torch.stack([alone.step(act).select(*KEYS) for _ in range(23)])
        assert_same(rollout[number], steps)
        assert rollout[number]["next", "done"].flatten().nonzero().flatten().tolist() == list(
            range(length - 1, 23, length)
        )


def test_rollouts_follow_each_other():
    whole, parts = make_streams(), make_streams()
    assert_same(
        torch.cat([parts.rollout(act_for_all, length) for length in (5, 1, 9)], 1), whole.rollout(act_for_all, 15)
    )


@pytest.mark.parametrize("steps", [1, 7, 14, 20])
def test_saved_streams_go_on_where_they_were(steps: int):
    streams, resumed = make_streams(), make_streams(seed=5)
    streams.rollout(act_for_all, steps)
    resumed.rollout(act_for_all, 3)  # used before
    resumed.load_state_dict(streams.state_dict())
    assert resumed.last_return == streams.last_return
    assert_same(resumed.rollout(act_for_all, 15), streams.rollout(act_for_all, 15))


def test_the_return_is_the_mean_of_the_last_ones():
    streams = make_streams()
    assert streams.last_return is None
    rollout = streams.rollout(act_for_all, 9)  # the first has not ended yet, the third has twice
    rewards = rollout["next", "reward"].squeeze(-1)
    expected = (rewards[1, :7].sum() + rewards[2, 4:8].sum()) / 2
    assert streams.last_return == pytest.approx(float(expected))


def test_when_one_fails_all_begin_anew_and_no_episode_has_a_gap():
    streams = make_streams(lengths=(10, 10), raise_at=8)
    buffer = FrameReplayBuffer(storage=LazyTensorStorage(100, ndim=2), num_frames=2)
    buffer.extend(streams.rollout(act_for_all, 5))
    with pytest.raises(EnvironmentFailed, match="episode 0 at step 8: ConnectionError"):
        streams.rollout(act_for_all, 5)
    assert all(state["observation"] is None for state in streams.state_dict()["streams"])
    rollout = streams.rollout(act_for_all, 5)
    buffer.extend(rollout)
    for number in range(2):
        alone = EpisodeStream(make_pixel_env(Walk(), num_frames=2), seed=derive_seed(1, "environment", number))
        alone.begin(1)
        assert torch.equal(rollout[number, 0]["pixels"], alone.observe())
    slices = buffer.slices(num_slices=200, slice_len=6)
    lengths = slices.sample().reshape(200, 6)["step"]
    assert (lengths == torch.arange(6)).all()  # five steps and a last observation, of either episode


def test_another_number_of_environments_is_refused():
    state = make_streams(lengths=(3, 3)).state_dict()
    with pytest.raises(ValueError, match="the state is of 2 environments; there are 3"):
        make_streams().load_state_dict(state)
    with pytest.raises(ValueError, match="envs has 0 environments"):
        EpisodeStreams([], seed=1)
    env = make_pixel_env(Walk())
    with pytest.raises(ValueError, match="none of them twice"):
        EpisodeStreams([env, env], seed=1)
