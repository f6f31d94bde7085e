"""Frames to MP4 and back, with the ffmpeg that imageio-ffmpeg brings along."""

from __future__ import annotations

import itertools
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from mcurl_torchrl.checks import check_count
from mcurl_torchrl.files import replacing

__all__ = ["read_video", "write_video"]

_SMALLEST_SIDE = 256


def write_video(
    path: str | os.PathLike[str], frames: Iterable[Any], *, fps: float = 30, scale: int | None = None
) -> None:
    """Writes frames as an H.264 video that browsers and slides can play.

    The file appears under its name only once it is whole. Sides of an odd length get their last row or column twice,
    since the pixel format (yuv420p) has none.

    Args:
        path (path): the MP4 file; missing folders are made.
        frames (iterable of Tensor or array): uint8, each ``[3, H, W]``, ``[H, W, 3]``, or grey as ``[1, H, W]``,
            ``[H, W, 1]`` or ``[H, W]``; or one tensor of them with the time first.

    Keyword Args:
        fps (float): frames per second. Defaults to 30.
        scale (int, optional): shows each pixel as a square of this side. Defaults to the least that makes the shorter
            side of the video at least 256 pixels.

    Raises:
        ValueError: if there is no frame, or one has the wrong shape or dtype.
        ImportError: if imageio-ffmpeg is missing.

    Examples:
        >>> import tempfile
        >>> import torch
        >>> from mcurl_torchrl.training.videos import read_video, write_video
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_video(f"{folder}/episode.mp4", torch.zeros(5, 3, 84, 84, dtype=torch.uint8))
        ...     read_video(f"{folder}/episode.mp4").shape
        torch.Size([5, 3, 336, 336])
    """
    if fps <= 0:
        raise ValueError(f"fps={fps}; it must be positive")
    if scale is not None:
        check_count("scale", scale)
    images = _rgb_images(frames)
    first = next(images, None)
    if first is None:
        raise ValueError("frames is empty; a video needs at least one")
    if scale is None:
        scale = max(1, -(-_SMALLEST_SIDE // min(first.shape[:2])))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        _encode(partial, (_enlarge(image, scale) for image in itertools.chain([first], images)), fps=fps)


def read_video(path: str | os.PathLike[str]) -> Tensor:
    """Reads all frames of a video, for tests and tools.

    Args:
        path (path): any video that ffmpeg can decode.

    Returns:
        The frames, uint8 ``[N, 3, H, W]``.

    Raises:
        FileNotFoundError: if there is no such file.
        ImportError: if imageio-ffmpeg is missing.

    Examples:
        >>> import tempfile
        >>> import torch
        >>> from mcurl_torchrl.training.videos import read_video, write_video
        >>> red = torch.tensor([255, 0, 0], dtype=torch.uint8).expand(4, 300, 300, 3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_video(f"{folder}/red.mp4", red)
        ...     back = read_video(f"{folder}/red.mp4")
        >>> back.shape, bool((back[:, 0] > 240).all()), bool((back[:, 1:] < 16).all())
        (torch.Size([4, 3, 300, 300]), True, True)
    """
    executable = _import_ffmpeg().get_ffmpeg_exe()
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no video {path}")
    # PPM images, one after the other: unlike raw frames they begin with their size, "P6\nWIDTH HEIGHT\n255\n".
    command = [executable, "-loglevel", "error", "-i", str(path), "-f", "image2pipe", "-c:v", "ppm", "-"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode != 0:
        raise OSError(f"ffmpeg could not read {path}: {done.stderr.decode(errors='replace').strip()}")
    header = b"\n".join(done.stdout.split(b"\n", 3)[:3]) + b"\n"
    width, height = map(int, header.split()[1:3])
    frames = torch.frombuffer(bytearray(done.stdout), dtype=torch.uint8).view(-1, len(header) + height * width * 3)
    return frames[:, len(header) :].reshape(-1, height, width, 3).permute(0, 3, 1, 2).contiguous()


def _import_ffmpeg() -> ModuleType:
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise ImportError("videos need imageio-ffmpeg: pip install 'mcurl-torchrl[recipes]'") from error
    return imageio_ffmpeg


def _rgb_images(frames: Iterable[Any]) -> Iterator[np.ndarray]:
    """Yields each frame as ``[H, W, 3]``."""
    size = None
    for index, frame in enumerate(frames):
        image = torch.as_tensor(frame)
        shape = list(image.shape)
        if image.dtype != torch.uint8:
            raise ValueError(f"frame {index} has the dtype {image.dtype}; uint8 is needed")
        if image.ndim == 2:
            image = image[..., None]
        elif image.ndim == 3 and shape[0] in (1, 3):
            image = image.permute(1, 2, 0)
        if image.ndim != 3 or image.shape[-1] not in (1, 3) or image.numel() == 0:
            raise ValueError(
                f"frame {index} has the shape {shape}; [3, H, W], [H, W, 3], or grey [1, H, W], [H, W, 1], [H, W] "
                "is needed"
            )
        size = image.shape[:2] if size is None else size
        if image.shape[:2] != size:
            raise ValueError(f"frame {index} has the shape {shape}; the frames before are {list(size)} (height, width)")
        yield image.expand(-1, -1, 3).cpu().numpy()


def _enlarge(image: np.ndarray, scale: int) -> np.ndarray:
    """Repeats each pixel, then the last row and column where a side would be odd."""
    image = image.repeat(scale, axis=0).repeat(scale, axis=1)
    height, width, _ = image.shape
    return np.pad(image, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def _encode(path: Path, images: Iterator[np.ndarray], *, fps: float) -> None:
    # ffmpeg is started here, not by imageio_ffmpeg.write_frames: that one lets ffmpeg write to the terminal and does
    # not look at its exit code, so that a full disk would leave a broken video without a word.
    executable = _import_ffmpeg().get_ffmpeg_exe()
    image = next(images)
    height, width, _ = image.shape
    # fmt: off
    command = [
        executable, "-y", "-loglevel", "error",
        "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(fps), "-i", "-",
        "-c:v", "libx264", "-preset", "veryfast", "-crf", "18", "-pix_fmt", "yuv420p",
        "-movflags", "+faststart",  # a browser can start before it has all of it
        "-f", "mp4", str(path),
    ]
    # fmt: on
    with tempfile.TemporaryFile() as errors:  # a pipe that nobody empties could block ffmpeg
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors)
        assert process.stdin is not None
        try:
            _feed(process.stdin, itertools.chain([image], images))
            code = process.wait()
        except BaseException:  # a bad frame, or Ctrl-C
            process.kill()
            process.wait()
            raise
        if code != 0:
            errors.seek(0)
            raise OSError(f"ffmpeg could not write {path}: {errors.read().decode(errors='replace').strip()}")


def _feed(pipe: IO[bytes], images: Iterator[np.ndarray]) -> None:
    try:
        with pipe:
            for image in images:
                pipe.write(image.tobytes())
    except BrokenPipeError:
        pass  # ffmpeg gave up; its exit code and its words say why
