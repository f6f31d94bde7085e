"""A game of Atari in the stream of episodes: a lost life ends an episode, and the game goes on, also when resumed.

An evaluation plays whole games.
"""

from __future__ import annotations

import warnings

import torch
from tensordict import TensorDictBase

from mcurl_torchrl import make_atari_env
from mcurl_torchrl.training import EpisodeStream, evaluate

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


def test_an_episode_begun_by_its_number_is_a_new_game():
    env, chance = make_atari_env("Breakout"), torch.Generator().manual_seed(0)
    stream = EpisodeStream(env, seed=3)
    while env.starts_new_game:  # until a life is lost
        play(stream, 1, chance)
    assert stream.state_dict()["observation"] is None
    stream.begin(5)
    fresh = EpisodeStream(make_atari_env("Breakout"), seed=3)
    fresh.episode = 4
    assert torch.equal(stream.observe(), fresh.observe())
    drawn = chance.get_state()
    expected = play(fresh, AFTER, chance)
    chance.set_state(drawn)
    for ours, theirs in zip(play(stream, AFTER, chance), expected, strict=True):
        assert all(torch.equal(ours[key], theirs[key]) for key in COMPARED)


def test_an_evaluation_plays_whole_games():
    def fires(observations: torch.Tensor) -> torch.Tensor:
        return torch.ones(len(observations), dtype=torch.int64)

    envs = [make_atari_env("Breakout", training=False) for _ in range(2)]
    games = evaluate(fires, envs, episodes=3, seed=1, num_frames=4, record=True, epsilon=0.9)
    assert len(set(games.lengths)) > 1
    assert len(games.frames) == games.lengths[0] and games.frames[0].shape == (1, 84, 84)
    assert evaluate(fires, envs[1], episodes=3, seed=1, epsilon=0.9).returns == games.returns
    # Where lives end episodes, each is the first life of its own game.
    one_life = [make_atari_env("Breakout", clip_rewards=False) for _ in range(3)]
    lives, again = (evaluate(fires, envs, episodes=3, seed=1, epsilon=0.9) for envs in (one_life, one_life[0]))
    assert lives.returns == again.returns and lives.lengths == again.lengths
    assert all(life < game for life, game in zip(lives.lengths, games.lengths, strict=True))
