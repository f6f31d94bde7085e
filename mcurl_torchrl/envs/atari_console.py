"""An Atari console and the resizing of its screens; only this module imports ale_py when it is loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from ale_py import Action, ALEInterface, LoggerMode

__all__ = ["AreaResize", "BilinearResize", "Console"]

WEIGHT_BITS = 11  # OpenCV's weights are multiples of 1 / 2048


class Console:
    """Plays one game: no-ops at its start, repeated actions, the per-pixel maximum of the last two raw frames.

    Screens are uint8 [C, H, W] of the console's own size. Actions are numbers of the game's minimal action set; no
    action is repeated at random. Games started after :meth:`seed` depend on the seed and the actions alone.

    Args:
        rom (Path): The game's ROM.
        frame_skip (int): How often each action is taken.
        max_noops (int): The largest number of no-ops, drawn uniformly from 0, at a game's start.
        max_emulator_frames (int): The number of raw frames, no-ops included, after which a game is cut.
        grayscale (bool): Whether screens have one channel rather than three.
    """

    def __init__(
        self, rom: Path, *, frame_skip: int, max_noops: int, max_emulator_frames: int, grayscale: bool
    ) -> None:
        ALEInterface.setLoggerMode(LoggerMode.Error)
        self._ale = ALEInterface()
        self._ale.setInt("random_seed", 0)  # no effect without sticky actions; the default is the time of day
        self._ale.setFloat("repeat_action_probability", 0.0)
        self._ale.setInt("frame_skip", 1)
        self._ale.setBool("color_averaging", False)
        self._ale.setInt("max_num_frames_per_episode", max_emulator_frames)
        self._ale.loadROM(rom)
        # Several games (Assault, KungFuMaster) begin differently once they were played: ALE's reset is the console's
        # reset switch, which keeps the memory. Loading the ROM again would also help, but takes 100 ms.
        self._switched_on = self._ale.cloneSystemState()
        self._actions = self._ale.getMinimalActionSet()
        self.frame_skip = frame_skip
        self._max_noops = max_noops
        self._read = self._ale.getScreenGrayscale if grayscale else self._ale.getScreenRGB
        height, width = self._ale.getScreenDims()
        self._screens = np.empty((2, height, width) if grayscale else (2, height, width, 3), np.uint8)
        self._colors: np.ndarray | None = None  # the last two color screens, kept after a call of color_screen()

    @property
    def num_actions(self) -> int:
        """The size of the game's minimal action set."""
        return len(self._actions)

    @property
    def screen_size(self) -> tuple[int, int]:
        """Height and width."""
        return self._ale.getScreenDims()

    @property
    def lives(self) -> int:
        """The number of lives left; always 0 in games without lives."""
        return self._ale.lives()

    @property
    def ram(self) -> np.ndarray:
        """The bytes of the memory, uint8 [128]."""
        return self._ale.getRAM()

    @property
    def game_over(self) -> bool:
        """Whether the game has ended by its own rules."""
        return self._ale.game_over(with_truncation=False)

    @property
    def game_cut(self) -> bool:
        """Whether the game has reached its largest number of raw frames."""
        return self._ale.game_truncated()

    @property
    def finished(self) -> bool:
        """Whether the game is over or cut; then only a new game can be played."""
        return self._ale.game_over(with_truncation=True)

    def seed(self, seed: int) -> None:
        """Makes the next new game the first game of the seed; a running game goes on until then."""
        self._generator = np.random.default_rng(seed)
        self._switch_on = True

    def new_game(self) -> np.ndarray:
        """Starts a game, lets a random number of no-ops pass, and returns the screen."""
        if self._switch_on:
            self._ale.restoreSystemState(self._switched_on)
            self._switch_on = False
        self._colors = None  # no mixture of two games
        self._ale.reset_game()
        for _ in range(self._generator.integers(self._max_noops, endpoint=True)):
            self._ale.act(Action.NOOP)
            if self.finished:
                self._ale.reset_game()
        return self._screen(0)

    def wait(self) -> np.ndarray:
        """Lets one raw frame pass with a no-op, and returns the screen."""
        self._colors = None
        self._ale.act(Action.NOOP)
        return self._screen(0)

    def step(self, action: int) -> tuple[np.ndarray, float]:
        """Takes the action ``frame_skip`` times, or until the game ends; returns the screen and the summed reward."""
        reward = 0
        for k in range(self.frame_skip):
            reward += self._ale.act(self._actions[action])
            screen = self._screen(k % 2)
            if self.finished:
                break
        if k > 0:
            screen = np.maximum(screen, self._screen_view((k - 1) % 2))
        elif self._colors is not None:
            self._colors[1] = self._colors[0]
        return screen, float(reward)

    def color_screen(self) -> np.ndarray:
        """Returns the color screen, uint8 [H, W, 3]: the maximum of two frames, as in :meth:`step`, against flicker."""
        if self._colors is None:
            self._colors = np.empty((2, *self.screen_size, 3), np.uint8)
            self._ale.getScreenRGB(self._colors[0])
            self._colors[1] = self._colors[0]
        return self._colors.max(0)

    def _screen(self, slot: int) -> np.ndarray:
        self._read(self._screens[slot])
        if self._colors is not None:
            self._ale.getScreenRGB(self._colors[slot])
        return self._screen_view(slot)

    def _screen_view(self, slot: int) -> np.ndarray:
        screen = self._screens[slot]
        return screen[np.newaxis] if screen.ndim == 2 else screen.transpose(2, 0, 1)


class BilinearResize:
    """Resizes uint8 images [C, H, W] bilinearly without antialiasing, as OpenCV's ``INTER_LINEAR`` does.

    Published Atari results use frames that are resized this way. Shrinking an Atari screen gives the same bits as
    OpenCV, enlarging may differ by 1. All arithmetic is in whole numbers, so that every machine gives the same frames.
    It is numpy, which uses one thread: torch would split this small work over all threads and wait for them.

    Args:
        height (int): The images' height.
        width (int): The images' width.
        size (int): Height and width of the results.

    Examples:
        >>> import numpy as np
        >>> from mcurl_torchrl.envs.atari_console import BilinearResize
        >>> image = np.array([[[0, 100], [100, 200]]], np.uint8)
        >>> BilinearResize(2, 2, 4)(image)[0, 0].tolist()
        [0, 25, 75, 100]
    """

    def __init__(self, height: int, width: int, size: int) -> None:
        self._top, self._bottom, top_weight, bottom_weight = _neighbors(height, size)
        self._left, self._right, self._left_weight, self._right_weight = _neighbors(width, size)
        self._top_weight, self._bottom_weight = top_weight[:, np.newaxis], bottom_weight[:, np.newaxis]

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Returns uint8 [C, size, size]."""
        rows = image.take(self._left, -1) * self._left_weight + image.take(self._right, -1) * self._right_weight
        # OpenCV drops bits along the way, so that products fit into 16-bit lanes: 4 here, 16 below, 2 at the end.
        rows >>= 4
        top = rows.take(self._top, -2) * self._top_weight >> 16
        bottom = rows.take(self._bottom, -2) * self._bottom_weight >> 16
        return ((top + bottom + 2) >> 2).astype(np.uint8)


def _neighbors(source: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns the two source pixels of each result pixel and their weights; beyond the border, the border pixel."""
    center = ((np.arange(size) + 0.5) * (source / size) - 0.5).clip(0, source - 1).astype(np.float32)
    first = center.astype(np.int64)
    fraction = center - first.astype(np.float32)  # OpenCV's precision: the last bit decides some roundings
    first_weight, second_weight = (np.rint(part * 2**WEIGHT_BITS).astype(np.int32) for part in (1 - fraction, fraction))
    return first, np.minimum(first + 1, source - 1), first_weight, second_weight


class AreaResize:
    """Shrinks uint8 images [C, H, W]: a result pixel is the mean of the area that it covers, in parts of pixels too.

    OpenCV calls this ``INTER_AREA``. Every screen pixel counts, however small the result is; bilinear resizing does not
    see a line between the rows that it reads. All arithmetic is in whole numbers, as in
    :class:`BilinearResize`; a half is rounded up.

    Args:
        height (int): The images' height.
        width (int): The images' width.
        size (int): Height and width of the results.

    Raises:
        ValueError: if the result is larger than the images.

    Examples:
        >>> import numpy as np
        >>> from mcurl_torchrl.envs.atari_console import AreaResize
        >>> image = np.array([[[0, 100, 200]] * 3], np.uint8)
        >>> AreaResize(3, 3, 2)(image)[0, 0].tolist()  # (0 + 100 / 2) / 1.5
        [33, 167]
    """

    def __init__(self, height: int, width: int, size: int) -> None:
        if size > min(height, width):
            raise ValueError(f"size={size} is larger than the images, {height}x{width}; AreaResize only shrinks")
        self._area = height * width
        self._size = size
        # The edges of each result pixel: a number of whole pixels, and a number of parts, 1/size each, of the next one.
        self._rows, self._row_parts = np.divmod(np.arange(size + 1) * height, size)
        self._columns, self._column_parts = np.divmod(np.arange(size + 1) * width, size)
        self._row_parts = self._row_parts[:, np.newaxis]

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Returns uint8 [C, size, size]."""
        totals = self._totals(image, -2, self._rows, self._row_parts)
        totals = self._totals(totals, -1, self._columns, self._column_parts)
        return ((totals + self._area // 2) // self._area).astype(np.uint8)

    def _totals(self, values: np.ndarray, axis: int, whole: np.ndarray, parts: np.ndarray) -> np.ndarray:
        """Sums the pixels between neighboring edges, in parts of a pixel."""
        nothing = np.zeros_like(values.take([0], axis), np.int64)
        before = np.concatenate([nothing, np.cumsum(values, axis, np.int64)], axis)
        up_to = before.take(whole, axis) * self._size + values.take(whole, axis, mode="clip") * parts
        return np.diff(up_to, axis=axis)
