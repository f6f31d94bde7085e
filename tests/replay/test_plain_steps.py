"""Steps from plain loops: dictionaries, NumPy arrays, and environments that reset themselves on the next step."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from tests.replay.episodes import make_buffer, make_episode, numbers_in


def arrays(step: TensorDict) -> dict:
    """Returns a step as the values of a Gymnasium loop: arrays, and Python's numbers for what is one number."""
    return {
        "obs": step["pixels"].numpy(),
        "action": step["action"].numpy(),
        "reward": step["next", "reward"].item() if not step.ndim else step["next", "reward"].squeeze(-1).numpy(),
        "terminated": step["next", "terminated"].squeeze(-1).numpy(),
        "truncated": step["next", "truncated"].squeeze(-1).numpy(),
        "next_obs": step["next", "pixels"].numpy(),
    }


def rows(buffer) -> TensorDict:
    return buffer.storage[:].clone()


@pytest.mark.parametrize("form", ["arrays", "flat dictionary", "nested dictionary"])
def test_one_environment(form: str) -> None:
    expected, buffer = make_buffer(50), make_buffer(50)
    for step in (*make_episode(6).unbind(0), *make_episode(4, first=100, terminated=True).unbind(0)):
        expected.add(step)
        if form == "arrays":
            buffer.add(**arrays(step))
        elif form == "flat dictionary":
            buffer.add({key: step[key].numpy() for key in step.keys(True, True)})
        else:
            buffer.add(
                {key: value.numpy() for key, value in step.exclude("next").items()} | {"next": dict(step["next"])}
            )
    assert (rows(buffer) == rows(expected)).all()
    assert rows(buffer)["next", "reward"].dtype == torch.float32


def test_several_steps_at_once() -> None:
    expected, buffer = make_buffer(50), make_buffer(50)
    episode = make_episode(9)
    expected.extend(episode)
    plain = {key: episode[key].numpy() for key in episode.keys(True, True)}
    plain["next", "reward"] = plain["next", "reward"].squeeze(-1).astype(np.float64)
    buffer.extend(plain)
    assert (rows(buffer) == rows(expected)).all()


def test_a_batch_of_environments() -> None:
    expected, buffer = make_buffer(60, ndim=2), make_buffer(60, ndim=2)
    episodes = torch.stack([make_episode(8), make_episode(8, first=100), make_episode(8, first=200)])
    for time in range(8):
        expected.add(episodes[:, time])
        buffer.add(**arrays(episodes[:, time]))
    assert (rows(buffer) == rows(expected)).all()


def test_numbers_become_tensors() -> None:
    buffer = make_buffer(50)
    frame = np.zeros((1, 2, 2), np.uint8)
    frame.flags.writeable = False
    buffer.add(obs=frame, action=3, reward=1, terminated=False, truncated=np.bool_(True), next_obs=frame)
    stored = rows(buffer)[0]
    assert stored["action"].dtype == torch.int64 and stored["action"] == 3
    assert stored["next", "reward"].tolist() == [1.0] and stored["next", "reward"].dtype == torch.float32
    assert stored["next", "truncated"].tolist() == [True]


class VectorCounter(gym.Env):
    """Episodes of different lengths; a frame shows the number of frames that were ever shown."""

    observation_space = gym.spaces.Box(0, 255, (1, 2, 2), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, first: int) -> None:
        self.shown, self.left, self.length = first, 0, 2

    def _show(self) -> np.ndarray:
        self.shown += 1
        return np.array([self.shown % 256, self.shown // 256, 0, 0], np.uint8).reshape(1, 2, 2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        self.length = self.length % 5 + 1
        self.left = self.length
        return self._show(), {}

    def step(self, action: int) -> tuple:
        self.left -= 1
        frame = self._show()
        return (
            frame,
            float(self.shown),
            self.left == 0 and self.length % 2 == 0,
            self.left == 0 and self.length % 2 == 1,
            {},
        )


@pytest.mark.parametrize("method", ["add", "extend"])
def test_environments_that_reset_themselves_on_the_next_step(method: str) -> None:
    # Gymnasium's default: the step after an end ignores the action and shows the first frame. It is no step.
    envs = gym.vector.SyncVectorEnv(
        [lambda first=first: VectorCounter(first) for first in (0, 1000, 2003)],
        autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP,
    )
    buffer = make_buffer(300, ndim=2, batch_size=3000)
    obs, _ = envs.reset()
    done = np.zeros(3, bool)
    seen, ends, steps, masks = {}, set(), [], []
    for _ in range(60):
        next_obs, reward, terminated, truncated, _ = envs.step(np.zeros(3, np.int64))
        fields = dict(obs=obs, action=np.zeros(3, np.int64), reward=reward, terminated=terminated, truncated=truncated)
        if method == "add":
            buffer.add(**fields, next_obs=next_obs, valid=~done)
        steps.append(
            {
                "pixels": obs,
                "action": np.zeros(3, np.int64),
                "next": {"pixels": next_obs, "reward": reward, "terminated": terminated, "truncated": truncated},
            }
        )
        masks.append(~done)
        for env in np.flatnonzero(~done):
            before, after = (numbers_in(torch.from_numpy(frame[env]))[0].item() for frame in (obs, next_obs))
            seen[before] = (after, terminated[env], truncated[env])
            ends |= {after} if terminated[env] or truncated[env] else set()
        obs, done = next_obs, terminated | truncated
    if method == "extend":
        stacked = {key: np.stack([step[key] for step in steps], 1) for key in ("pixels", "action")} | {
            "next": {key: np.stack([step["next"][key] for step in steps], 1) for key in steps[0]["next"]}
        }
        buffer.extend(stacked, valid=np.stack(masks, 1))
    assert buffer.write_count == len(seen)
    batch = buffer.sample()
    before, after = numbers_in(batch["pixels"])[:, 0].tolist(), numbers_in(batch["next", "pixels"])[:, 0].tolist()
    flags = zip(*(batch["next", name].squeeze(-1).tolist() for name in ("terminated", "truncated")), strict=True)
    for one, other, flag in zip(before, after, flags, strict=True):
        assert seen[one] == (other, *flag)
    assert set(before) == set(seen)
    assert ends and not ends & set(before)
    slices = buffer.slices(num_slices=200, slice_len=2).sample().reshape(200, 2)
    assert (numbers_in(slices["pixels"])[..., 0].diff(dim=1) == 1).all()


def test_no_valid_step_at_all() -> None:
    buffer = make_buffer(50, ndim=2)
    steps = torch.stack([make_episode(1), make_episode(1, first=50)])[:, 0]
    assert buffer.add(steps, valid=[False, False]).shape == (0, 2)
    assert len(buffer) == 0
    assert len(buffer.add(steps, valid=[False, True])) == 2
    assert numbers_in(rows(buffer)["pixels"])[:, 1, 0].tolist() == [50, 51]
    assert rows(buffer)["trajectory"].tolist() == [[-1, 0], [-1, 0]]
    one = make_buffer(50)
    assert one.add(make_episode(1)[0], valid=False).shape == (0,)
    assert len(one.add(make_episode(1)[0], valid=True)) == 2


class TestBadInput:
    def test_missing_values(self) -> None:
        with pytest.raises(TypeError, match=r"or all of \['obs', .*'next_obs'\]; \['reward', 'next_obs'\] is missing"):
            make_buffer().add(obs=np.zeros((1, 2, 2), np.uint8), action=0, terminated=False, truncated=False)

    def test_both_forms(self) -> None:
        with pytest.raises(TypeError, match="got both"):
            make_buffer().add(make_episode(1)[0], reward=1.0)

    def test_what_is_no_step(self) -> None:
        with pytest.raises(TypeError, match="extend takes a tensordict or a dictionary; got list"):
            make_buffer().extend([1, 2])

    def test_a_mask_of_another_shape(self) -> None:
        buffer = make_buffer(ndim=2)
        steps = torch.stack([make_episode(3), make_episode(3, first=50)])
        with pytest.raises(ValueError, match=r"valid must be bools of shape \[2, 3\]; got torch.bool of shape \[2\]"):
            buffer.extend(steps, valid=[True, False])
        with pytest.raises(ValueError, match=r"valid must be bools of shape \[2\]; got torch.int64"):
            buffer.add(steps[:, 0], valid=[1, 0])

    def test_a_missing_key_is_named(self) -> None:
        with pytest.raises(KeyError, match=r"a step must have \('next', 'terminated'\)"):
            make_buffer().add({"pixels": np.zeros((1, 2, 2), np.uint8)})
