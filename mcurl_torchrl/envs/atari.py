"""Atari games, as the Atari-100k benchmark plays them."""

from __future__ import annotations

import difflib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

from mcurl_torchrl.checks import check_choice, check_count
from mcurl_torchrl.stacking import FrameStack

if TYPE_CHECKING:
    from mcurl_torchrl.envs.atari_console import AreaResize, BilinearResize, Console

__all__ = ["make_atari_env", "rom_path"]

_INTERPOLATIONS = ("bilinear", "area")


def make_atari_env(
    game: str,
    *,
    training: bool = True,
    num_frames: int = 4,
    image_size: int = 84,
    interpolation: str = "bilinear",
    frame_skip: int = 4,
    max_noops: int = 29,
    max_emulator_frames: int = 108_000,
    terminal_on_life_loss: bool | None = None,
    clip_rewards: bool | None = None,
    grayscale: bool = True,
    seed: int = 0,
) -> EnvBase:
    """Builds a game of the Arcade Learning Environment (https://arxiv.org/abs/1207.4708) as a TorchRL environment.

    The setting is that of data-efficient Rainbow (https://arxiv.org/abs/1906.05243): the game's minimal action set, no
    sticky actions, each action taken ``frame_skip`` times, the per-pixel maximum of the last two raw frames, resized as
    OpenCV's ``INTER_LINEAR`` does (or ``INTER_AREA``).

    In training each lost life ends an episode, as ``terminated``. The game goes on: the next ``env.reset()`` is one
    no-op in the same game. ``env.starts_new_game`` tells whether the next reset starts a new game; it is False only
    between a lost life and that reset. After ``env.set_seed(s)`` the next reset always starts a new game, and
    everything after it depends on ``s`` and the actions alone, on a new environment and on a used one. A program that
    seeds each episode should check ``env.starts_new_game`` first: a seed after a lost life would end the game. No
    global random state is read or changed.

    Writes "pixels" uint8 [num_frames, image_size, image_size], the last ``num_frames`` frames, oldest first (at a reset
    all but the newest are zeros, the padding "zeros" of :class:`~mcurl_torchrl.FrameReplayBuffer`); "reward" float32
    [1], the game's score over the skipped frames, in training clipped to [-1, 1]; "done", "terminated" and "truncated"
    bool [1]: a game cut at ``max_emulator_frames`` is ``truncated``. Reads "action" int64 [], the action's number in
    the minimal action set. For videos, ``env.rendered_screen()`` returns the color screen, and
    ``env.agent_steps_per_second`` is the speed of the console.

    Args:
        game (str): Its short name, such as "MsPacman".
        training (bool): Whether lost lives end an episode and rewards are clipped; False plays whole games for their
            raw score. Defaults to True.
        num_frames (int): Frames per observation. Defaults to 4.
        image_size (int): Height and width of the frames. Defaults to 84.
        interpolation (str): How screens are shrunk. "bilinear" reads the four screen pixels nearest to each frame
            pixel, as published for data-efficient Rainbow and CURL. "area" takes the mean of the whole area that a
            frame pixel covers, as Dopamine does: no screen pixel is left out, but small objects become faint. Defaults
            to "bilinear".
        frame_skip (int): Raw frames per agent step. Defaults to 4.
        max_noops (int): The largest number of no-ops at the start of a game; the number is drawn uniformly from 0 to
            this one. Defaults to 29.
        max_emulator_frames (int): Raw frames per game, its no-ops included. Defaults to 108,000, half an hour.
        terminal_on_life_loss (bool, optional): Whether lost lives end an episode. Defaults to ``training``.
        clip_rewards (bool, optional): Whether rewards are clipped. Defaults to ``training``.
        grayscale (bool): Whether frames are gray; False gives RGB, [3 * num_frames, ...]. Defaults to True.
        seed (int): The seed of the first games, from 0 to 2**32 - 1. Defaults to 0.

    Raises:
        ImportError: if ale_py is not installed.
        TypeError: if a count is not a whole number.
        ValueError: if there is no such game, or if a number is out of range.

    Examples:
        >>> from mcurl_torchrl.envs.atari import make_atari_env
        >>> env = make_atari_env("MsPacman")
        >>> steps = env.rollout(5)
        >>> steps["pixels"].shape, steps["pixels"].dtype
        (torch.Size([5, 4, 84, 84]), torch.uint8)
        >>> env.action_spec.n, env.starts_new_game
        (9, True)
        >>> scores = make_atari_env("MsPacman", training=False)
    """
    for name, count in (
        ("num_frames", num_frames),
        ("image_size", image_size),
        ("frame_skip", frame_skip),
        ("max_emulator_frames", max_emulator_frames),
    ):
        check_count(name, count)
    check_choice("interpolation", interpolation, _INTERPOLATIONS)
    if max_noops != 0:
        check_count("max_noops", max_noops)
    if max_noops >= max_emulator_frames:
        raise ValueError(f"max_noops={max_noops}; it must be below max_emulator_frames={max_emulator_frames}")
    rom = rom_path(game)
    from mcurl_torchrl.envs.atari_console import AreaResize, BilinearResize, Console

    console = Console(
        rom,
        frame_skip=frame_skip,
        max_noops=max_noops,
        max_emulator_frames=max_emulator_frames,
        grayscale=grayscale,
    )
    resize = AreaResize if interpolation == "area" else BilinearResize
    env = _AtariEnv(
        console,
        resize(*console.screen_size, size=image_size),
        num_frames=num_frames,
        frame_shape=(1 if grayscale else 3, image_size, image_size),
        terminal_on_life_loss=training if terminal_on_life_loss is None else terminal_on_life_loss,
        clip_rewards=training if clip_rewards is None else clip_rewards,
    )
    env.set_seed(seed)
    return env


def rom_path(game: str) -> Path:
    """Returns the path of the game's ROM, which is part of ale_py.

    Args:
        game (str): Its short name, such as "MsPacman".

    Raises:
        ImportError: if ale_py is not installed.
        ValueError: if there is no such game, with close matches, or if one player alone cannot play it.

    Examples:
        >>> from mcurl_torchrl.envs.atari import rom_path
        >>> rom_path("MsPacman").name
        'ms_pacman.bin'
    """
    if importlib.util.find_spec("ale_py") is None:
        raise ImportError("make_atari_env needs ale_py: pip install 'mcurl-torchrl[atari]'")
    from ale_py import ALEInterface, roms

    rom_ids = {rom_id.title().replace("_", ""): rom_id for rom_id in roms.get_all_rom_ids()}
    if game not in rom_ids:
        names = {name.lower(): name for name in rom_ids}
        close = [names[match] for match in difflib.get_close_matches(str(game).lower(), names)]
        raise ValueError(f"game={game!r}; did you mean one of {close or sorted(rom_ids)}?")
    path = roms.get_rom_path(rom_ids[game])
    # Checked here, because loading such a ROM ends the whole process.
    if path is None or ALEInterface.isSupportedROM(path) is None:
        raise ValueError(f"game={game!r}; the Arcade Learning Environment cannot play it with one player")
    return path


class _AtariEnv(EnvBase):
    """Episodes of a console's games: lives, clipped rewards, resized and stacked frames."""

    def __init__(
        self,
        console: Console,
        resize: AreaResize | BilinearResize,
        *,
        num_frames: int,
        frame_shape: tuple[int, int, int],
        terminal_on_life_loss: bool,
        clip_rewards: bool,
    ) -> None:
        super().__init__(device=torch.device("cpu"))
        self._console = console
        self._resize = resize
        self._stack = FrameStack(num_frames, padding="zeros")
        self._terminal_on_life_loss = terminal_on_life_loss
        self._clip_rewards = clip_rewards
        self._lives = 0
        self._game_goes_on = False
        channels, height, width = frame_shape
        pixels = Bounded(0, 255, (num_frames * channels, height, width), dtype=torch.uint8)
        self.observation_spec = Composite(pixels=pixels)
        self.action_spec = Categorical(console.num_actions, dtype=torch.int64)
        self.reward_spec = Unbounded((1,), dtype=torch.float32)
        self.done_spec = Composite({key: Binary(1, (1,), dtype=torch.bool) for key in self._flags(False, False)})

    @property
    def starts_new_game(self) -> bool:
        """Whether the next reset starts a new game; False after a lost life, while the game goes on."""
        return not self._game_goes_on

    @property
    def ram(self) -> np.ndarray:
        """The 128 bytes of the console's memory: the state of the game."""
        return self._console.ram

    @property
    def agent_steps_per_second(self) -> float:
        """How fast the agent acts on a real console, which draws 60 frames a second."""
        return 60 / self._console.frame_skip

    def rendered_screen(self) -> np.ndarray:
        """Returns the color screen, uint8 [210, 160, 3]."""
        return self._console.color_screen()

    def _set_seed(self, seed: int | None) -> None:
        if seed is None:
            return
        if not 0 <= seed < 2**32:
            raise ValueError(f"seed={seed}; it must be from 0 to 2**32 - 1")
        self._console.seed(seed)
        self._game_goes_on = False

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: object) -> TensorDictBase:
        screen = self._console.wait() if self._game_goes_on else None
        if screen is None or self._console.finished:  # the no-op may be the last frame that a game may have
            screen = self._console.new_game()
            self._lives = self._console.lives
        self._game_goes_on = False
        self._stack.clear()
        return self._observation(screen, self._flags(False, False))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        screen, reward = self._console.step(int(tensordict.get("action")))
        lives = self._console.lives
        # Above 0, as published: some games (BankHeist) go on with 0 lives left; there the game's end ends the episode.
        lost_life = self._terminal_on_life_loss and 0 < lives < self._lives
        self._lives = lives
        self._game_goes_on = lost_life and not self._console.finished
        if self._clip_rewards:
            reward = max(-1.0, min(1.0, reward))
        flags = self._flags(self._console.game_over or lost_life, self._console.game_cut)
        return self._observation(screen, flags).set("reward", torch.tensor([reward], dtype=torch.float32))

    def _observation(self, screen: np.ndarray, flags: dict[str, torch.Tensor]) -> TensorDict:
        pixels = self._stack.push(torch.from_numpy(self._resize(screen)))
        return TensorDict({"pixels": pixels, **flags}, batch_size=[])

    @staticmethod
    def _flags(terminated: bool, truncated: bool) -> dict[str, torch.Tensor]:
        flags = {"done": terminated or truncated, "terminated": terminated, "truncated": truncated}
        return {key: torch.tensor([flag]) for key, flag in flags.items()}
