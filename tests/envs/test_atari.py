"""make_atari_env: its observations, rewards and ends are compared with the emulator's raw frames."""

from __future__ import annotations

import hashlib
import inspect
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from ale_py import Action, ALEInterface, roms
from tensordict import TensorDict
from torch import nn
from torchrl.data import LazyTensorStorage
from torchrl.envs import EnvBase, RewardSum, TransformedEnv
from torchrl.envs.utils import check_env_specs
from torchrl.modules import QValueActor

from mcurl_torchrl.envs.atari import make_atari_env
from mcurl_torchrl.envs.atari_console import AreaResize, BilinearResize
from mcurl_torchrl.replay import FrameReplayBuffer
from tests.envs.games import ATARI_100K_GAMES
from tests.envs.random_state import global_random_states_untouched
from tests.envs.test_dmc import assert_same, play

NOOP_FREE = {"max_noops": 0}
LIFE_LOST = 26  # with the actions below, Breakout loses its first life in this step


def actions_of(env: EnvBase, steps: int, seed: int = 2) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(env.action_spec.n, size=steps))


def ale_of(env: EnvBase) -> ALEInterface:
    return env._console._ale


def ram_of(env: EnvBase) -> list[int]:
    return ale_of(env).getRAM().tolist()


def new_ale(rom_id: str) -> ALEInterface:
    ale = ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(roms.get_rom_path(rom_id))
    ale.reset_game()
    return ale


def slow_bilinear(image: np.ndarray, size: int) -> np.ndarray:
    """One pixel at a time, in doubles, rounded."""
    height, width = image.shape
    picture = image.tolist()

    def around(source: int, k: int) -> tuple[int, int, float]:
        center = min(max((k + 0.5) * source / size - 0.5, 0.0), source - 1.0)
        return int(center), min(int(center) + 1, source - 1), center - int(center)

    resized = np.empty((size, size))
    for row in range(size):
        top, bottom, down = around(height, row)
        for column in range(size):
            left, right, across = around(width, column)
            above = (1 - across) * picture[top][left] + across * picture[top][right]
            below = (1 - across) * picture[bottom][left] + across * picture[bottom][right]
            resized[row, column] = (1 - down) * above + down * below
    return resized.round()


def close_to(frame: torch.Tensor, screen: np.ndarray) -> bool:
    """Whether a frame is the screen resized, up to the rounding of the fixed-point weights: at most 1 of 255."""
    return bool(np.abs(frame.numpy() - slow_bilinear(screen, frame.shape[-1])).max() <= 1)


def repeated(ale: ALEInterface, action: Action, times: int) -> tuple[np.ndarray, int]:
    """The maximum of the last two raw frames, and the sum of the rewards."""
    rewards, screens = [], []
    for _ in range(times):
        rewards.append(ale.act(action))
        screens.append(ale.getScreenGrayscale())
    return np.stack(screens[-2:]).max(0), sum(rewards)


def lose_a_life(env: EnvBase) -> TensorDict:
    """Plays Breakout up to its first lost life."""
    played = play(env, actions_of(env, LIFE_LOST))
    assert ale_of(env).lives() == 4
    return played


# -- specs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"training": False}, {"num_frames": 1, "image_size": 42}, {"grayscale": False, "frame_skip": 2}]
)
def test_specs(options: dict) -> None:
    env = make_atari_env("Breakout", **options)
    check_env_specs(env)
    step = env.rollout(2)
    size = options.get("image_size", 84)
    channels = options.get("num_frames", 4) * (1 if options.get("grayscale", True) else 3)
    assert step["pixels"].shape == (2, channels, size, size) and step["pixels"].dtype == torch.uint8
    assert step["next", "reward"].shape == (2, 1) and step["next", "reward"].dtype == torch.float32
    assert step["action"].shape == (2,) and step["action"].dtype == torch.int64
    assert env.action_spec.n == 4  # no-op, fire, right, left
    for key in ("done", "terminated", "truncated"):
        assert step["next", key].shape == (2, 1) and step["next", key].dtype == torch.bool


def test_a_value_network_of_torchrl_plays() -> None:
    env = make_atari_env("Pong")
    network = nn.Sequential(nn.Flatten(-3), nn.Linear(4 * 84 * 84, 6))
    plays = QValueActor(Floats(network), in_keys=["pixels"], spec=env.action_spec, action_space="categorical")
    assert env.rollout(3, plays)["action_value"].shape == (3, 6)


class Floats(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.network(pixels / 255)


@pytest.mark.parametrize("game", ATARI_100K_GAMES)
def test_the_games_of_the_benchmark(game: str) -> None:
    env = make_atari_env(game)
    assert 3 <= env.action_spec.n <= 18
    played = play(env, actions_of(env, 3))
    assert (played["pixels"][-1].flatten(1).float().std(1) > 0).all()
    assert ale_of(env).getFloat("repeat_action_probability") == 0


def test_there_are_26_of_them() -> None:
    assert len(set(ATARI_100K_GAMES)) == 26


def test_another_game_with_a_taller_screen() -> None:
    env = make_atari_env("Carnival", training=False, **NOOP_FREE)
    ale = new_ale("carnival")
    assert ale.getScreenDims() == (214, 160)
    assert close_to(env.reset()["pixels"][-1], ale.getScreenGrayscale())


# -- frames, rewards, ends -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("game", "rom_id", "frame_skip", "steps"),
    [("Breakout", "breakout", 4, 80), ("UpNDown", "up_n_down", 4, 30), ("Boxing", "boxing", 3, 20)],
)
@pytest.mark.parametrize("training", [True, False])
def test_what_happens_is_what_the_raw_frames_say(
    game: str, rom_id: str, frame_skip: int, steps: int, training: bool
) -> None:
    env = make_atari_env(game, training=training, frame_skip=frame_skip, **NOOP_FREE)
    ale = new_ale(rom_id)
    lives, lost = ale.lives(), 0
    now = env.reset()
    assert close_to(now["pixels"][-1], ale.getScreenGrayscale())
    for number, action in enumerate(actions_of(env, steps)):
        now = env.step(now.set("action", action))["next"]
        screen, reward = repeated(ale, ale.getMinimalActionSet()[action], frame_skip)
        assert now["reward"].item() == (min(max(reward, -1), 1) if training else reward)
        assert ram_of(env) == ale.getRAM().tolist(), number
        life_lost, lives = ale.lives() < lives, ale.lives()
        lost += life_lost
        assert now["terminated"].item() == now["done"].item() == (training and life_lost)
        assert not now["truncated"].item()
        if life_lost or number % 3 == 0:  # the slow resize is slow
            assert close_to(now["pixels"][-1], screen), number
        if now["done"]:
            now = env.reset()
            ale.act(Action.NOOP)
            assert close_to(now["pixels"][-1], ale.getScreenGrayscale())
    assert lost >= 2 or game != "Breakout"


def test_only_the_last_two_raw_frames_are_merged() -> None:
    # The ball of Pong moves with every raw frame.
    env = make_atari_env("Pong", training=False, image_size=210, **NOOP_FREE)
    now, ale, differs = env.reset(), new_ale("pong"), 0
    for number in range(30):
        now = env.step(now.set("action", torch.tensor(0)))["next"]
        for _ in range(2):
            ale.act(Action.NOOP)
        screen, _ = repeated(ale, Action.NOOP, 2)
        differs += int((screen != ale.getScreenGrayscale()).any())
        if number >= 25:
            assert close_to(now["pixels"][-1], screen)
    assert differs > 5


def test_colours() -> None:
    env = make_atari_env("Breakout", grayscale=False, num_frames=2, **NOOP_FREE)
    ale = new_ale("breakout")
    shown = play(env, torch.tensor([1]))["pixels"]
    for _ in range(3):
        ale.act(Action.FIRE)
    screen = ale.getScreenRGB()
    ale.act(Action.FIRE)
    screen = np.maximum(screen, ale.getScreenRGB())
    for channel in range(3):
        assert close_to(shown[1, 3 + channel], screen[..., channel])
    assert torch.equal(shown[1, :3], shown[0, 3:]) and not shown[0, :3].any()


def test_rewards_are_clipped_as_sums_and_in_training_only() -> None:
    actions = actions_of(env := make_atari_env("Boxing", training=False, **NOOP_FREE), 80, seed=4)
    raw = play(env, actions)["reward"]
    assert raw.min() == -2 and raw.max() == 2
    assert torch.equal(play(make_atari_env("Boxing", **NOOP_FREE), actions)["reward"], raw.clamp(-1, 1))
    unclipped = make_atari_env("Boxing", clip_rewards=False, **NOOP_FREE)
    assert torch.equal(play(unclipped, actions)["reward"], raw)


def test_stacks_start_with_zeros_and_shift() -> None:
    env = make_atari_env("Breakout", **NOOP_FREE)
    actions = actions_of(env, LIFE_LOST)
    for _ in range(2):  # the second episode, after a lost life, must not see the first one's frames
        frames = play(env, actions)["pixels"]
        assert not frames[0, :-1].any() and frames[0, -1].any()
        assert torch.equal(frames[1:, :-1], frames[:-1, 1:])


def test_the_replay_buffer_rebuilds_the_stacks() -> None:
    env = make_atari_env("Breakout", **NOOP_FREE)
    steps = env.rollout(70, lambda td: td.set("action", torch.tensor(1)), break_when_any_done=False)
    ends = steps["next", "terminated"].flatten().nonzero().flatten()
    assert len(ends) >= 2
    buffer = FrameReplayBuffer(storage=LazyTensorStorage(200), num_frames=4, padding="zeros", batch_size=64)
    buffer.extend(steps)
    assert len(buffer) == len(steps) + len(ends)
    starts = torch.cat([torch.tensor([0]), ends + 1])
    batch = buffer.sample()
    order = batch["trajectory"] - batch["trajectory"].min()
    rows = steps[starts[order.flatten()] + batch["step"].flatten()]
    for key in ("pixels", ("next", "pixels"), "action", ("next", "terminated")):
        assert torch.equal(batch[key], rows[key]), key


# -- resizing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("height", "width", "size", "digest"),
    # The first 16 digits of sha256 of cv2.resize(image, (size, size), interpolation=cv2.INTER_LINEAR), OpenCV 5.0.0.
    [
        (210, 160, 84, "21ad994650830e15"),
        (250, 160, 84, "5e7c5c7db4d1cc79"),
        (210, 160, 42, "dce0f04cf67d9c71"),
    ],
)
def test_resizing_is_opencvs_bit_for_bit(height: int, width: int, size: int, digest: str) -> None:
    image = np.random.default_rng(height).integers(0, 256, (height, width), dtype=np.uint8)
    resized = BilinearResize(height, width, size)(image[np.newaxis])[0]
    assert hashlib.sha256(resized.tobytes()).hexdigest()[:16] == digest
    assert np.abs(resized - slow_bilinear(image, size)).max() <= 1


@pytest.mark.parametrize(("height", "width", "size"), [(21, 16, 5), (7, 9, 7), (12, 8, 4), (10, 11, 1), (210, 160, 50)])
def test_area_resizing_is_the_mean_of_what_a_pixel_covers(height: int, width: int, size: int) -> None:
    image = np.random.default_rng(size).integers(0, 256, (3, height, width), dtype=np.uint8)
    resized = AreaResize(height, width, size)(image)
    # With each pixel cut into size x size equal parts, a result's pixel covers whole parts only.
    parts = image.repeat(size, 1).repeat(size, 2).reshape(3, size, height, size, width)
    mean = parts.mean((2, 4), dtype=np.float64)
    assert resized.dtype == np.uint8 and resized.shape == (3, size, size)
    np.testing.assert_array_equal(resized, np.floor(mean + 0.5))


def test_area_resizing_shows_every_line_of_a_screen() -> None:
    for row in range(210):
        image = np.zeros((1, 210, 160), np.uint8)
        image[0, row] = 200
        resized = AreaResize(210, 160, 50)(image)
        assert resized.max() >= 23 and abs(int(resized[0, :, 0].sum()) - 200 / 4.2) <= 1


def test_an_environment_resizes_as_told() -> None:
    screens = {}
    for interpolation in ("bilinear", "area"):
        env = make_atari_env("RoadRunner", image_size=50, interpolation=interpolation, **NOOP_FREE)
        screens[interpolation] = env.reset()["pixels"][-1].numpy()
        raw = ale_of(env).getScreenGrayscale()[np.newaxis]
        resize = {"bilinear": BilinearResize, "area": AreaResize}[interpolation](210, 160, 50)
        np.testing.assert_array_equal(screens[interpolation], resize(raw)[0])
    assert (screens["bilinear"] != screens["area"]).any()


# -- lives -----------------------------------------------------------------------------------------------------------


def test_the_reset_after_a_lost_life_is_one_no_op() -> None:
    env = make_atari_env("Breakout", **NOOP_FREE)
    assert env.starts_new_game
    played = lose_a_life(env)
    assert played["terminated"].flatten().nonzero().tolist() == [[LIFE_LOST]] and not played["truncated"].any()
    assert not env.starts_new_game
    frames = ale_of(env).getEpisodeFrameNumber()
    env.reset()
    assert ale_of(env).getEpisodeFrameNumber() == frames + 1 and ale_of(env).lives() == 4
    assert env.starts_new_game  # a reset in the middle of an episode gives the game up
    env.reset()
    assert ale_of(env).getEpisodeFrameNumber() == 0 and ale_of(env).lives() == 5


def test_a_game_over_is_followed_by_a_new_game() -> None:
    env = make_atari_env("Breakout", seed=3)
    now, number = env.reset(), 0
    for action in actions_of(env, 300):
        now = env.step(now.set("action", action))["next"]
        if now["done"]:
            assert now["terminated"] and not now["truncated"]
            over = ale_of(env).game_over()
            assert env.starts_new_game == over
            now, number = env.reset(), number + 1
            assert (ale_of(env).getEpisodeFrameNumber() <= 29) == over
            if over:
                break
    assert number == 5 and ale_of(env).lives() == 5  # five lives, five episodes


def test_no_lives_left_are_not_a_lost_life() -> None:
    # The last life of Bank Heist is played with none left; published results end the episode at the game's end only.
    env = make_atari_env("BankHeist", **NOOP_FREE)
    env._console = WithLives(env._console, lives=1)
    now = env.step(env.reset().set("action", torch.tensor(0)))["next"]
    env._console.lives = 0
    assert not env.step(now.set("action", torch.tensor(0)))["next", "done"]


def test_lives_won_in_a_game_given_up_are_not_lost_in_the_next() -> None:
    env = make_atari_env("Breakout", **NOOP_FREE)
    env._console = WithLives(env._console, lives=9)
    env.step(env.reset().set("action", torch.tensor(0)))
    env._console.lives = 5
    assert not env.step(env.reset().set("action", torch.tensor(0)))["next", "done"]


class WithLives:
    """A console that tells another number of lives."""

    def __init__(self, console: Any, lives: int) -> None:
        self.console, self.lives = console, lives

    def __getattr__(self, name: str) -> Any:
        return getattr(self.console, name)


def test_a_lost_life_is_nothing_in_evaluation() -> None:
    env = make_atari_env("Breakout", training=False, **NOOP_FREE)
    played = lose_a_life(env)
    assert not played["done"].any() and env.starts_new_game
    env.reset()
    assert ale_of(env).getEpisodeFrameNumber() == 0 and ale_of(env).lives() == 5


@pytest.mark.parametrize("training", [True, False])
def test_lives_and_clipping_can_be_chosen_apart(training: bool) -> None:
    env = make_atari_env("Breakout", training=training, terminal_on_life_loss=not training, **NOOP_FREE)
    assert lose_a_life(env)["done"].any() == (not training)


# -- cut games -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_a_game_is_cut_at_its_largest_number_of_raw_frames(training: bool) -> None:
    env = make_atari_env("Breakout", training=training, max_emulator_frames=50, **NOOP_FREE)
    for _ in range(2):
        played = play(env, actions_of(env, 13))  # 12 * 4 + 2
        assert played["truncated"].flatten().nonzero().tolist() == [[13]]
        assert torch.equal(played["done"], played["truncated"]) and not played["terminated"].any()
        assert ale_of(env).getEpisodeFrameNumber() == 50
        assert env.starts_new_game


def test_a_cut_step_shows_the_last_two_of_its_raw_frames() -> None:
    env = make_atari_env("Pong", max_emulator_frames=122, **NOOP_FREE)
    frame = play(env, torch.zeros(31, dtype=torch.int64))["pixels"][-1, -1]  # 30 * 4 + 2
    ale = new_ale("pong")
    for _ in range(120):
        ale.act(Action.NOOP)
    screen, _ = repeated(ale, Action.NOOP, 2)
    assert close_to(frame, screen) and not close_to(frame, ale.getScreenGrayscale())


def test_no_ops_count_among_the_raw_frames() -> None:
    env = make_atari_env("Pong", max_emulator_frames=50, seed=3)
    env.reset()
    noops = ale_of(env).getEpisodeFrameNumber()
    assert noops > 0
    env.set_seed(3)
    assert len(env.rollout(30)) == -((noops - 50) // 4)


def test_a_life_lost_with_the_last_raw_frame() -> None:
    env = make_atari_env("Breakout", max_emulator_frames=4 * LIFE_LOST, **NOOP_FREE)
    played = lose_a_life(env)
    assert played["terminated"][-1] and played["truncated"][-1] and env.starts_new_game
    env.reset()
    assert ale_of(env).getEpisodeFrameNumber() == 0


def test_the_no_op_after_a_lost_life_is_the_last_raw_frame() -> None:
    env = make_atari_env("Breakout", max_emulator_frames=4 * LIFE_LOST + 1, **NOOP_FREE)
    assert not lose_a_life(env)["truncated"].any() and not env.starts_new_game
    assert not env.reset()["done"]
    assert ale_of(env).getEpisodeFrameNumber() == 0 and ale_of(env).lives() == 5


# -- seeds -----------------------------------------------------------------------------------------------------------


def test_0_to_29_no_ops_each_as_likely() -> None:
    env = make_atari_env("Breakout", seed=1)
    ale = new_ale("breakout")
    after = {0: ale.getRAM().tolist()}
    for noops in range(1, 30):
        ale.act(Action.NOOP)
        after[noops] = ale.getRAM().tolist()
    counts: Counter[int] = Counter()
    for seed in range(300):
        if seed % 2:  # half of the games are a seed's second
            env.set_seed(seed)
        env.reset()
        noops = ale_of(env).getEpisodeFrameNumber()
        assert ram_of(env) == after[noops]
        counts[noops] += 1
    assert sorted(counts) == list(range(30))
    assert sum((count - 10) ** 2 / 10 for count in counts.values()) < 58.3  # chi-squared, 29 degrees, 0.1 %


def test_a_smaller_number_of_no_ops() -> None:
    env = make_atari_env("Breakout", max_noops=1)
    seen = set()
    for _ in range(20):
        env.reset()
        seen.add(ale_of(env).getEpisodeFrameNumber())
    assert seen == {0, 1}


@pytest.mark.parametrize("game", ["Assault", "Pong"])
def test_what_follows_a_seed_depends_on_the_seed_alone(game: str) -> None:
    # Assault begins differently after having been played, unless the console is switched off and on.
    new, used = make_atari_env(game, seed=5), make_atari_env(game, seed=11)
    actions = actions_of(new, 40)
    other = play(used, actions)
    play(used, actions_of(new, 150, seed=1))  # through lost lives, left in the middle of a game
    used.set_seed(5)
    for _ in range(2):  # the seed's first and second episode
        first, second = play(new, actions), play(used, actions)
        assert_same(first, second)
        assert ram_of(new) == ram_of(used)
        assert not torch.equal(first["pixels"], other["pixels"])
        other = first


def test_a_seed_starts_a_new_game_even_after_a_lost_life() -> None:
    env = make_atari_env("Breakout", **NOOP_FREE)
    lose_a_life(env)
    env.set_seed(None)  # as if it had not been called
    assert not env.starts_new_game
    env.set_seed(4)
    assert env.starts_new_game
    env.reset()
    assert ale_of(env).getEpisodeFrameNumber() == 0 and ale_of(env).lives() == 5


def test_a_seed_leaves_a_game_under_way_alone() -> None:
    env, untouched = (make_atari_env("Breakout", **NOOP_FREE) for _ in range(2))
    actions = actions_of(env, 11)
    now = play(env, actions[:-1])[-1]
    env.set_seed(1)
    step = env.step(now.set("action", actions[-1]))["next"]
    assert torch.equal(step["pixels"], play(untouched, actions)["pixels"][-1])
    assert ram_of(env) == ram_of(untouched)


def test_a_game_of_several_lives_is_played_again_from_its_seed_and_actions() -> None:
    env = make_atari_env("Assault", seed=8)
    actions, starts = actions_of(env, 250), []
    first = through_lives(env, actions, starts)
    assert starts[:2] == [True, False]
    env.set_seed(8)
    assert torch.equal(through_lives(env, actions, []), first)


def through_lives(env: EnvBase, actions: torch.Tensor, starts: list[bool]) -> torch.Tensor:
    """Takes the actions, with resets where episodes end; notes whether each reset started a new game."""
    starts.append(env.starts_new_game)
    now, seen = env.reset(), []
    for action in actions:
        now = env.step(now.set("action", action))["next"]
        seen.append(now["pixels"])
        if now["done"]:
            starts.append(env.starts_new_game)
            now = env.reset()
            seen.append(now["pixels"])
    return torch.stack(seen)


def test_transformed_environments_tell_it_too() -> None:
    env = TransformedEnv(make_atari_env("Breakout", **NOOP_FREE), RewardSum())
    assert env.starts_new_game
    play(env, actions_of(env, LIFE_LOST))
    assert not env.starts_new_game


def test_global_random_states_are_left_alone() -> None:
    with global_random_states_untouched():
        env = make_atari_env("Breakout")
        env.set_seed(3)
        play(env, torch.zeros(3, dtype=torch.int64))


def test_what_was_shown_does_not_change() -> None:
    env = make_atari_env("Breakout")
    first = env.reset()
    kept = first["pixels"].clone()
    env.step(first.clone(False).set("action", torch.tensor(1)))
    assert torch.equal(first["pixels"], kept)


# -- arguments -------------------------------------------------------------------------------------------------------


def test_the_builder_can_be_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(make_atari_env)) is make_atari_env
    assert "seed" in inspect.signature(make_atari_env).parameters


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"game": "MsPackman"}, ValueError, "game='MsPackman'.*'MsPacman'"),
        ({"game": "mspacman"}, ValueError, "'MsPacman'"),
        ({"game": "ms_pacman"}, ValueError, "'MsPacman'"),
        ({"game": "ALE/Pong-v5"}, ValueError, "'Pong'"),
        ({"game": "xyzzy"}, ValueError, "game='xyzzy'.*'Adventure'"),
        ({"game": "Combat"}, ValueError, "game='Combat'.*one player"),
        ({"num_frames": 0}, ValueError, "num_frames=0"),
        ({"image_size": 84.0}, TypeError, "image_size=84.0"),
        ({"image_size": 161, "interpolation": "area"}, ValueError, "size=161.*210x160"),
        ({"interpolation": "linear"}, ValueError, "interpolation='linear'.*bilinear"),
        ({"frame_skip": 0}, ValueError, "frame_skip=0"),
        ({"max_noops": -1}, ValueError, "max_noops=-1"),
        ({"max_noops": 1.5}, TypeError, "max_noops=1.5"),
        ({"max_emulator_frames": 0}, ValueError, "max_emulator_frames=0"),
        ({"max_emulator_frames": 29}, ValueError, "max_noops=29.*max_emulator_frames=29"),
        ({"seed": -1}, ValueError, "seed=-1"),
    ],
)
def test_refusals(options: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_atari_env(**{"game": "Pong"} | options)


def test_a_missing_ale_py_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'mcurl-torchrl\[atari\]'"):
        make_atari_env("Pong")
