"""A game of Atari in the stream of episodes: a lost life ends an episode, and the game goes on, also when resumed."""

from __future__ import annotations

import warnings

import torch
from tensordict import TensorDictBase

from mcurl_torchrl import make_atari_env
from mcurl_torchrl.training import EpisodeStream

STEPS, AFTER = 330, 12
COMPARED = ("pixels", "action", ("next", "pixels"), ("next", "reward"), ("next", "done"))


def play(stream: EpisodeStream, steps: int, chance: torch.Generator) -> list[TensorDictBase]:
    return [stream.step(lambda _: torch.randint(4, (), generator=chance)) for _ in range(steps)]


def test_resumed_around_every_lost_life_and_every_game_over():
    env, chance = make_atari_env("Breakout"), torch.Generator().manual_seed(0)
    stream = EpisodeStream(env, seed=3)
    states, steps, ends, kinds = [], [], [], set()
    for number in range(STEPS):
        states.append((stream.state_dict(), chance.get_state()))
        steps += play(stream, 1, chance)
        if steps[-1]["next", "done"]:
            ends.append(number + 1)
            kinds.add(env.starts_new_game)
    assert kinds == {True, False}  # both a lost life and a game over

    used = make_atari_env("Breakout", seed=9)
    around = {0, 1, 100, *(end + offset for end in ends for offset in (-1, 0, 1))}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in sorted(step for step in around if step + AFTER <= STEPS):
            used.rollout(5)
            resumed, (state, chance_then) = EpisodeStream(used, seed=0), states[number]
            resumed.load_state_dict(state)
            assert resumed.last_return == state["last_return"]
            chance.set_state(chance_then)
            for ours, expected in zip(play(resumed, AFTER, chance), steps[number:], strict=False):
                assert all(torch.equal(ours[key], expected[key]) for key in COMPARED)
