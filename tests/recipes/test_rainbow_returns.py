"""The n-step returns that the Rainbow recipe learns from never cross a lost life or a game's end."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from tensordict import TensorDictBase

from mcurl_torchrl.training import EpisodeStream
from recipes.building import make_env
from recipes.rainbow_mcurl import make_replay
from tests.recipes.test_rainbow_configs import settings


@pytest.mark.parametrize(
    ("max_emulator_frames", "ends"), [(108_000, {"life", "game"}), (600, {"life", "cut"})], ids=["whole", "cut"]
)
def test_no_return_crosses_the_end_of_an_episode(tmp_path, max_emulator_frames, ends):
    # Assault rewards soon after a life is lost and soon after a game begins, so that a return that crosses is wrong.
    sizes = ["env.image_size=36", "replay.capacity=1000", "rainbow.batch_size=500"]
    cfg = settings("env=Assault", "algo=rainbow", *sizes, f"env.max_emulator_frames={max_emulator_frames}")
    env = make_env(cfg.env, training=True)
    buffer = make_replay(cfg, tmp_path)
    stream = EpisodeStream(env, seed=1)
    episodes: list[list[TensorDictBase]] = [[]]
    endings: list[str] = []
    for _ in range(900):
        step = stream.step(lambda _: env.action_spec.rand())
        buffer.add(step)
        episodes[-1].append(step.clone())
        if step["next", "done"]:
            assert bool(step["next", "terminated"]) != bool(step["next", "truncated"])
            how = "game" if env.starts_new_game else "life"
            endings.append("cut" if step["next", "truncated"] else how)
            episodes.append([])
    rewards = [float(step["next", "reward"]) for episode in episodes for step in episode]
    assert set(rewards) == {0.0, 1.0}  # the game gives 21 at once

    seen: set[tuple[int, int]] = set()
    would_be_wrong: Counter[str] = Counter()
    for _ in range(20):  # so often that each transition is drawn
        batch = buffer.sample()
        pairs = zip(batch["trajectory"].tolist(), batch["step"].tolist(), strict=True)
        for place, (number, start) in enumerate(pairs):
            if (number, start) in seen:
                continue
            seen.add((number, start))
            expected = check_transition(batch[place], episodes[number], start)
            begin = sum(map(len, episodes[:number])) + start
            careless = sum(0.99**k * reward for k, reward in enumerate(rewards[begin : begin + 20]))
            if abs(careless - expected) > 1e-3:
                would_be_wrong[endings[number]] += 1
    assert set(would_be_wrong) == ends
    assert seen == {
        (number, start)
        for number, episode in enumerate(episodes)
        for start in range(len(episode))
        # Where an episode is under way, the observation after n steps is stored with the step that is taken there.
        if number < len(endings) or start + 20 < len(episode)
    }


def check_transition(sample: TensorDictBase, episode: list[TensorDictBase], start: int) -> float:
    """Compares a sampled transition with the steps of its episode; returns its expected return."""
    steps = min(20, len(episode) - start)
    first, last = episode[start], episode[start + steps - 1]
    expected = sum(0.99**k * float(episode[start + k]["next", "reward"]) for k in range(steps))
    assert int(sample["steps_to_next_obs"]) == steps
    assert float(sample["next", "reward"]) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    for key in ("terminated", "truncated", "done"):
        assert bool(sample["next", key]) == bool(last["next", key])
    assert int(sample["action"]) == int(first["action"])
    assert torch.equal(sample["pixels"], first["pixels"])
    assert torch.equal(sample["next", "pixels"], last["next", "pixels"])
    return expected
