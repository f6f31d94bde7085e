"""Evaluation: the same returns with any number of environments, and what a run makes of them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torchrl.envs import EnvBase, GymWrapper, SerialEnv

from mcurl_torchrl import make_pixel_env
from mcurl_torchrl.modules import GaussianPolicy
from mcurl_torchrl.training import (
    EnvironmentFailed,
    EpisodeStream,
    RunDirectory,
    RunPlan,
    TrainingRun,
    evaluate,
    tables,
)
from mcurl_torchrl.training import run as run_module
from tests.envs.random_state import global_random_states_untouched

EPISODES = 7
NUM_ACTIONS = 3


class Game(gymnasium.Env):
    """Rewards depend on the place and the action; how long an episode takes is drawn at its start."""

    observation_space = gymnasium.spaces.Box(0, 255, (12, 12, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(NUM_ACTIONS)

    def __init__(self, *, raise_at: int | None = None) -> None:
        self.raise_at, self.taken = raise_at, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = int(self.np_random.integers(256)), 0
        self.length = int(self.np_random.integers(2, 20))
        return self._image(), {}

    def step(self, action):
        self.steps += 1
        if self.steps == self.raise_at:
            raise ConnectionError("the simulator is gone")
        self.taken.append(int(action))
        self.place += int(self.np_random.integers(50)) + 10 * int(action)
        return self._image(), self.place / 100 * int(action), False, self.steps == self.length, {}

    def _image(self):
        return np.full((12, 12, 3), self.place % 256, np.uint8)


def make_one_hot() -> EnvBase:
    return make_pixel_env(Game(), num_frames=2)


def make_categorical(game: Game | None = None) -> EnvBase:
    return make_pixel_env(GymWrapper(game or Game(), categorical_action_encoding=True), num_frames=2)


def by_brightness(observations: torch.Tensor) -> torch.Tensor:
    return observations[:, -1, 0, 0].long() % NUM_ACTIONS


def one_hot_by_brightness(observations: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.one_hot(by_brightness(observations), NUM_ACTIONS).bool()


def always_zero(observations: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(observations), dtype=torch.int64)


KINDS = pytest.mark.parametrize(
    ("make_env", "act"), [(make_categorical, by_brightness), (make_one_hot, one_hot_by_brightness)]
)


def drawn(observations: torch.Tensor, *, generator: torch.Generator) -> torch.Tensor:
    """Draws action 2 twice as often as the others."""
    assert len(observations) == 1  # the episode's own generator draws for no other
    return torch.tensor([0.25, 0.25, 0.5]).multinomial(1, generator=generator)


# -- episodes, whoever plays them --------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_returns_do_not_depend_on_the_number_of_environments(make_env: Callable, act: Callable, epsilon: float):
    def found(envs: EnvBase | list[EnvBase]) -> tuple:
        evaluation = evaluate(act, envs, episodes=EPISODES, seed=4, num_frames=2, record=True, epsilon=epsilon)
        return evaluation.returns, evaluation.lengths, [frame.tolist() for frame in evaluation.frames]

    expected = found(make_env())
    assert len(set(expected[0])) == EPISODES and len(set(expected[1])) > 3
    used = [make_env() for _ in range(EPISODES + 2)]
    for number in (1, 2, 3, EPISODES, EPISODES + 2):
        assert found(used[:number]) == expected


def test_episodes_are_those_of_a_stream_and_the_first_is_filmed():
    evaluation = evaluate(
        by_brightness, [make_categorical() for _ in range(3)], episodes=5, seed=4, num_frames=2, record=True
    )
    stream, stacks = EpisodeStream(make_categorical(), seed=4), []
    for episode in range(5):
        over = False
        while not over:
            step = stream.step(lambda observation: by_brightness(observation[None])[0])
            stacks += [step["pixels"]] if episode == 0 else []
            over = bool(step["next", "done"])
        assert (stream.episode_return, stream.episode_length) == (
            evaluation.returns[episode],
            evaluation.lengths[episode],
        )
    assert evaluation.mean == pytest.approx(sum(evaluation.returns) / 5)
    assert len(evaluation.frames) == evaluation.lengths[0]
    newest = [stack[3:] for stack in stacks]
    assert all(torch.equal(frame, stack) for frame, stack in zip(evaluation.frames, newest, strict=True))
    assert evaluate(by_brightness, make_categorical(), episodes=2, seed=4).frames == []


@pytest.mark.parametrize("number", [1, 3, 10])
def test_no_environment_is_idle_while_episodes_are_left(number: int):
    ended: list[tuple[int, float]] = []
    batches = []

    def act(observations: torch.Tensor) -> torch.Tensor:
        batches.append((len(observations), min(number, EPISODES - len(ended))))
        return by_brightness(observations)

    evaluation = evaluate(
        act,
        [make_categorical() for _ in range(number)],
        episodes=EPISODES,
        seed=4,
        on_episode=lambda count, score: ended.append((count, score)),
    )
    assert all(size == wanted for size, wanted in batches)
    assert sum(size for size, _ in batches) == sum(evaluation.lengths)
    assert [count for count, _ in ended] == list(range(1, EPISODES + 1))
    scores = [score for _, score in ended]
    assert sorted(scores) == sorted(evaluation.returns)
    assert (scores == evaluation.returns) == (number == 1)  # these are in the order of their ends


def test_an_environment_that_fails_is_named():
    envs = [make_categorical(), make_categorical(Game(raise_at=1))]
    with pytest.raises(EnvironmentFailed, match="episode 1 at step 1: ConnectionError"):
        evaluate(by_brightness, envs, episodes=3, seed=4)


def test_bad_input():
    env = make_categorical()
    with pytest.raises(ValueError, match="episodes=0"):
        evaluate(by_brightness, env, episodes=0, seed=4)
    with pytest.raises(ValueError, match="envs has 0 environments"):
        evaluate(by_brightness, [], episodes=1, seed=4)
    with pytest.raises(ValueError, match="none of them twice"):
        evaluate(by_brightness, [env, env], episodes=1, seed=4)
    with pytest.raises(ValueError, match=r"actions \[\] for 1 observations; they must be \[1\]"):
        evaluate(lambda _: torch.tensor(0), env, episodes=1, seed=4)
    batched = SerialEnv(2, make_categorical)
    with pytest.raises(ValueError, match=r"batch_size=\[2\]"):
        evaluate(by_brightness, batched, episodes=1, seed=4)
    batched.close(raise_if_closed=False)


# -- random actions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 0.6, 1.0])
def test_random_actions_are_as_many_as_asked_and_uniform(epsilon: float):
    game = Game()
    evaluate(always_zero, make_categorical(game), episodes=200, seed=4, epsilon=epsilon)
    shares = np.bincount(game.taken, minlength=NUM_ACTIONS) / len(game.taken)
    np.testing.assert_allclose(shares[1:], epsilon / NUM_ACTIONS, atol=0.03)


def test_episodes_have_random_numbers_of_their_own():
    game = Game()
    lengths = evaluate(always_zero, make_categorical(game), episodes=20, seed=4, epsilon=1.0).lengths
    starts = np.cumsum([0, *lengths[:-1]])
    long = [start for start, length in zip(starts, lengths, strict=True) if length >= 8]
    assert len(long) > 5
    assert len({tuple(game.taken[start : start + 8]) for start in long}) == len(long)


@KINDS
def test_global_random_states_are_neither_changed_nor_read(make_env: Callable, act: Callable):
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        envs = [make_env(), make_env()]
        with global_random_states_untouched():
            found.append(evaluate(act, envs, episodes=EPISODES, seed=4, epsilon=0.5).returns)
    assert found[0] == found[1]


def test_drawn_actions_depend_on_the_episode_alone():
    def played(number: int, seed: int = 4) -> list[float]:
        with global_random_states_untouched():
            envs = [make_categorical() for _ in range(number)]
            return evaluate(drawn, envs, episodes=EPISODES, seed=seed, sample=True).returns

    expected = played(1)
    assert all(played(number) == expected for number in (2, EPISODES + 1))
    assert played(1, seed=5) != expected


def test_drawn_actions_are_those_of_the_policy():
    game = Game()
    lengths = evaluate(drawn, make_categorical(game), episodes=200, seed=4, sample=True).lengths
    shares = np.bincount(game.taken, minlength=NUM_ACTIONS) / len(game.taken)
    np.testing.assert_allclose(shares, [0.25, 0.25, 0.5], atol=0.03)
    starts = np.cumsum([0, *lengths[:-1]])
    long = [start for start, length in zip(starts, lengths, strict=True) if length >= 12]
    assert len({tuple(game.taken[start : start + 12]) for start in long}) == len(long) > 20


def test_random_actions_of_another_kind_are_refused():
    class Continuous(Game):
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    env = make_pixel_env(Continuous())
    with pytest.raises(ValueError, match=r"epsilon=0.1 with actions of the kind Bounded.*Categorical and OneHot"):
        evaluate(lambda observations: torch.zeros(len(observations), 1), env, episodes=1, seed=4, epsilon=0.1)
    for epsilon in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=f"epsilon={epsilon}"):
            evaluate(always_zero, make_categorical(), episodes=1, seed=4, epsilon=epsilon)


# -- in a run ----------------------------------------------------------------------------------------------------------


def evaluated_run(folder: Path, baselines: tuple[float, float] | None = None, **settings: Any) -> RunDirectory:
    """Evaluates at the agent steps 0, 2 and 4 of 4, in two environments, and trains nothing."""
    policy = GaussianPolicy([4], 1, hidden_dim=4)
    plan = RunPlan(
        name="nothing",
        seed=1,
        total_agent_steps=4,
        evaluation_interval=2,
        checkpoint_interval=100,
        video=False,
        baselines=baselines,
        **{"evaluation_episodes": 2, **settings},
    )
    run = TrainingRun(folder, plan, progress=False)
    run.track(policy)  # without a replay buffer
    envs = [make_categorical(), make_categorical()]
    run.begin(by_brightness, envs)
    for step in run.agent_steps():
        run.finish_step(step, by_brightness, envs)
    return run.directory


def test_nothing_is_tracked(tmp_path: Path):
    plan = RunPlan(name="nothing", seed=1, total_agent_steps=4, evaluation_interval=2, checkpoint_interval=100)
    with pytest.raises(RuntimeError, match=r"call track\(\) first"):
        TrainingRun(tmp_path, plan, progress=False).begin(by_brightness, [make_categorical()])


def test_several_agent_steps_at_a_time(tmp_path: Path):
    """With batched environments: an interval is due when it is passed, and the last step is the total."""
    plan = RunPlan(
        name="nothing",
        seed=1,
        total_agent_steps=20,
        evaluation_interval=10,
        checkpoint_interval=7,
        log_interval=5,
        evaluation_episodes=1,
        video=False,
    )
    run = TrainingRun(tmp_path, plan, progress=False)
    run.track(GaussianPolicy([4], 1, hidden_dim=4))
    env = make_categorical()
    run.begin(by_brightness, env)
    taken = []
    for step in run.agent_steps(stride=8):
        taken.append(step)
        run.record(step, {"loss_value": torch.tensor(1.0)})
        run.finish_step(step, by_brightness, env)
    assert taken == [8, 16, 20] and run.finished
    assert list(evaluations(run.directory)) == [0, 16, 20]
    assert [row["step"] for row in tables.read(run.directory.metrics.path)] == [8, 16, 20]
    assert [found.step for found in run.checkpoints.list()][-2:] == [16, 20]


def evaluations(directory: RunDirectory) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for row in tables.read(directory.eval.path):
        found.setdefault(row["step"], []).append(row["return"])
    return found


def test_the_last_evaluation_of_a_run_may_be_longer(tmp_path: Path):
    directory = evaluated_run(tmp_path, final_evaluation_episodes=9)
    found = evaluations(directory)
    assert {step: len(returns) for step, returns in found.items()} == {0: 2, 2: 2, 4: 9}
    result = json.loads(directory.result.read_text())
    means = {step: sum(returns) / len(returns) for step, returns in found.items()}
    assert result["final_return"] == pytest.approx(means[4])
    assert result["best_return"] == pytest.approx(max(means.values()))
    assert result["best_env_steps"] == max(means, key=means.get) != 4  # by the luck of few episodes
    assert (result["final_episodes"], result["evaluation_episodes"], result["finished"]) == (9, 2, True)
    assert not any("human" in key or "random" in key for key in result)


def test_a_run_that_says_nothing_of_its_last_evaluation(tmp_path: Path):
    directory = evaluated_run(tmp_path)
    assert {step: len(returns) for step, returns in evaluations(directory).items()} == {0: 2, 2: 2, 4: 2}
    result = json.loads(directory.result.read_text())
    assert result["final_episodes"] == 2
    assert result["best_return"] == result["final_return"] and result["best_env_steps"] == 4  # the last may be the best


def test_results_on_the_human_scale(tmp_path: Path):
    result = json.loads(evaluated_run(tmp_path, baselines=(2.0, 12.0), final_evaluation_episodes=9).result.read_text())
    assert (result["random_score"], result["human_score"]) == (2.0, 12.0)
    for name in ("final", "best"):
        assert result[f"{name}_human_normalized"] == pytest.approx((result[f"{name}_return"] - 2) / 10)
    assert result["final_human_normalized"] != result["best_human_normalized"]
    with pytest.raises(ValueError, match=r"random=2.0 and human=2.0"):
        evaluated_run(tmp_path / "other", baselines=(2.0, 2.0))
    assert not (tmp_path / "other" / "eval.csv").exists()  # said at once


def test_a_run_hands_its_epsilon_on(tmp_path: Path):
    greedy, random_too = (
        evaluations(evaluated_run(tmp_path / str(epsilon), evaluation_epsilon=epsilon)) for epsilon in (0.0, 0.5)
    )
    assert greedy.keys() == random_too.keys() and all(greedy[step] != random_too[step] for step in greedy)
    with pytest.raises(ValueError, match="evaluation_epsilon=2"):
        evaluated_run(tmp_path / "other", evaluation_epsilon=2)


def test_a_run_hands_its_sampling_on(tmp_path: Path):
    with pytest.raises(TypeError, match="generator"):
        evaluated_run(tmp_path / "run", evaluation_sample=True)  # its policy takes none


@pytest.mark.parametrize("slow", [False, True])
def test_a_long_evaluation_tells_how_far_it_is(slow: bool, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_module, "_QUIET_SECONDS", 0.0 if slow else 1000.0)
    evaluated_run(tmp_path, evaluation_episodes=1, final_evaluation_episodes=10)
    said = [line.partition(" after")[0] for line in capsys.readouterr().err.splitlines() if "evaluating: " in line]
    assert said == ([f"evaluating: {count} of 10 episodes" for count in (3, 6, 9)] if slow else [])


def test_an_evaluation_without_the_end_of_an_episode_says_so_once(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_module, "_LONG_EPISODE_SECONDS", 0.0)
    evaluated_run(tmp_path, evaluation_episodes=2, final_evaluation_episodes=2)
    said = [line for line in capsys.readouterr().err.splitlines() if "needs a time limit" in line]
    assert len(said) == 3 and all(line.startswith("evaluating: no episode has ended after 0 s; ") for line in said)
