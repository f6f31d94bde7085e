"""Atari games, as the Atari-100k benchmark plays them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

from mcurl_torchrl.checks import check_choice, check_count
from mcurl_torchrl.envs.atari_games import rom_path

if TYPE_CHECKING:
    from mcurl_torchrl.envs.atari_simulator import Console

__all__ = ["make_atari_env"]

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

    In training an episode ends with each lost life, as ``terminated``. The game goes on: the next ``env.reset()`` is
    one no-op in the same game. ``env.starts_new_game`` tells whether the next reset starts a new game; it is False only
    between a lost life and that reset. After ``env.set_seed(s)`` the next reset always starts a new game, and all that
    follows depends on ``s`` and the actions alone, on a new environment and on a used one; whoever seeds each episode
    should ask ``env.starts_new_game`` first, lest every lost life be the end of the game. No global random state is
    read or changed.

    Writes "pixels" uint8 [num_frames, image_size, image_size], the last ``num_frames`` frames, oldest first (at a reset
    all but the newest are zeros, the padding "zeros" of :class:`~mcurl_torchrl.FrameReplayBuffer`); "reward" float32
    [1], the game's score over the skipped frames, in training clipped to [-1, 1]; "done", "terminated" and "truncated"
    bool [1]: a game cut at ``max_emulator_frames`` is ``truncated``. Reads "action" int64 [], the action's number in
    the minimal action set.

    Args:
        game (str): Its short name, such as "MsPacman".
        training (bool): Whether lost lives end an episode and rewards are clipped; False plays whole games for their
            raw score. Defaults to True.
        num_frames (int): Frames per observation. Defaults to 4.
        image_size (int): Height and width of the frames. Defaults to 84.
        interpolation (str): How screens are shrunk: "bilinear", of the four pixels nearest to a frame's pixel, as
            published for data-efficient Rainbow and CURL; or "area", the mean of all that a frame's pixel covers, as
            Dopamine has it: nothing is left out, but small things grow faint. Defaults to "bilinear".
        frame_skip (int): Raw frames per agent step. Defaults to 4.
        max_noops (int): At a new game, so many raw frames at most pass with no-ops; the number is drawn uniformly
            from 0 on. Defaults to 29.
        max_emulator_frames (int): Raw frames per game, its no-ops included. Defaults to 108,000, half an hour.
        terminal_on_life_loss (bool, optional): Whether lost lives end an episode. Defaults to ``training``.
        clip_rewards (bool, optional): Whether rewards are clipped. Defaults to ``training``.
        grayscale (bool): Whether frames are grey; False gives RGB, [3 * num_frames, ...]. Defaults to True.
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
    from mcurl_torchrl.envs.atari_simulator import Console

    console = Console(
        rom,
        frame_skip=frame_skip,
        max_noops=max_noops,
        max_emulator_frames=max_emulator_frames,
        grayscale=grayscale,
    )
    env = _AtariEnv(
        console,
        stack_shape=(num_frames, 1 if grayscale else 3, image_size, image_size),
        interpolation=interpolation,
        terminal_on_life_loss=training if terminal_on_life_loss is None else terminal_on_life_loss,
        clip_rewards=training if clip_rewards is None else clip_rewards,
    )
    env.set_seed(seed)
    return env


class _AtariEnv(EnvBase):
    """Episodes of a console's games: lives, clipped rewards, resized and stacked frames."""

    def __init__(
        self,
        console: Console,
        *,
        stack_shape: tuple[int, int, int, int],
        interpolation: str,
        terminal_on_life_loss: bool,
        clip_rewards: bool,
    ) -> None:
        super().__init__(device=torch.device("cpu"))
        from mcurl_torchrl.envs.atari_simulator import AreaResize, BilinearResize

        self._console = console
        resize = AreaResize if interpolation == "area" else BilinearResize
        self._resize = resize(*console.screen_size, size=stack_shape[-1])
        self._terminal_on_life_loss = terminal_on_life_loss
        self._clip_rewards = clip_rewards
        self._stack = np.zeros(stack_shape, np.uint8)
        self._lives = 0
        self._game_goes_on = False
        num_frames, channels, height, width = stack_shape
        shown = Bounded(0, 255, (num_frames * channels, height, width), dtype=torch.uint8)
        self.observation_spec = Composite(pixels=shown)
        self.action_spec = Categorical(console.num_actions, dtype=torch.int64)
        self.reward_spec = Unbounded((1,), dtype=torch.float32)
        self.done_spec = Composite({key: Binary(1, (1,), dtype=torch.bool) for key in self._flags(False, False)})

    @property
    def starts_new_game(self) -> bool:
        """Whether the next reset starts a new game; False where a life was lost and the game goes on."""
        return not self._game_goes_on

    def _set_seed(self, seed: int | None) -> None:
        if seed is None:
            return
        if not 0 <= seed < 2**32:
            raise ValueError(f"seed={seed}; it must be from 0 to 2**32 - 1")
        self._console.seed(seed)
        self._game_goes_on = False

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: object) -> TensorDictBase:
        screen = self._console.wait() if self._game_goes_on else None
        if screen is None or self._console.finished:  # the no-op may have been the last frame that a game may have
            screen = self._console.new_game()
            self._lives = self._console.lives
        self._game_goes_on = False
        self._stack = np.zeros_like(self._stack)
        return self._shown(screen, self._flags(False, False))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        screen, reward = self._console.step(int(tensordict.get("action")))
        lives = self._console.lives
        # Above 0, as published: some games (BankHeist) go on with none left, and the episode ends with the game then.
        lost_life = self._terminal_on_life_loss and 0 < lives < self._lives
        self._lives = lives
        self._game_goes_on = lost_life and not self._console.finished
        if self._clip_rewards:
            reward = max(-1.0, min(1.0, reward))
        shown = self._shown(screen, self._flags(self._console.game_over or lost_life, self._console.game_cut))
        return shown.set("reward", torch.tensor([reward], dtype=torch.float32))

    def _shown(self, screen: np.ndarray, flags: dict[str, torch.Tensor]) -> TensorDict:
        stack = np.empty_like(self._stack)  # a new one each time: what was shown before must not change
        stack[:-1] = self._stack[1:]
        stack[-1] = self._resize(screen)
        self._stack = stack
        pixels = torch.from_numpy(stack.reshape(-1, *stack.shape[2:]))
        return TensorDict({"pixels": pixels, **flags}, batch_size=[])

    @staticmethod
    def _flags(terminated: bool, truncated: bool) -> dict[str, torch.Tensor]:
        flags = {"done": terminated or truncated, "terminated": terminated, "truncated": truncated}
        return {key: torch.tensor([flag]) for key, flag in flags.items()}
