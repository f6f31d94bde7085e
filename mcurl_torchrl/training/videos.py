"""Frames to MP4, with the ffmpeg of the package imageio-ffmpeg."""

from __future__ import annotations

import itertools
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcurl_torchrl.checks import needs
from mcurl_torchrl.files import replacing

__all__ = ["side_by_side", "write_video"]

_SMALLEST_SIDE = 256
_GAP = 8  # pixels between two pictures


def write_video(path: str | os.PathLike[str], frames: Iterable[Any], *, fps: float = 30) -> None:
    """Writes frames as an H.264 video that browsers and slides can play.

    The file appears under its name only once it is whole. A pixel becomes a square, the smallest that makes the shorter
    side of the video at least 256 pixels. Sides of an odd length get their last row or column twice, because the pixel
    format (yuv420p) needs even sides.

    Args:
        path (path): the MP4 file; missing folders are made.
        frames (iterable of Tensor or array): uint8, each ``[3, H, W]``, ``[H, W, 3]``, or gray as ``[1, H, W]``,
            ``[H, W, 1]`` or ``[H, W]``; or one tensor of them with the time first.

    Keyword Args:
        fps (float): frames per second. Defaults to 30.

    Raises:
        ValueError: if there is no frame, or one has the wrong shape or dtype.
        OSError: if ffmpeg fails, with its message.
        ImportError: if imageio-ffmpeg is missing.

    Examples:
        >>> import tempfile
        >>> import torch
        >>> from pathlib import Path
        >>> from mcurl_torchrl.training.videos import write_video
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_video(f"{folder}/episode.mp4", torch.zeros(5, 3, 84, 84, dtype=torch.uint8))
        ...     [file.name for file in Path(folder).iterdir()]
        ['episode.mp4']
    """
    with needs("videos need imageio-ffmpeg", "recipes"):
        from imageio_ffmpeg import get_ffmpeg_exe
    if fps <= 0:
        raise ValueError(f"fps={fps}; it must be positive")
    images = _rgb_images(frames)
    first = next(images, None)
    if first is None:
        raise ValueError("frames is empty; a video needs at least one")
    height, width, _ = first.shape
    scale = -(-_SMALLEST_SIDE // min(height, width))  # rounded up
    enlarge = f"scale={scale * width}:{scale * height}:flags=neighbor,format=gbrp,pad=ceil(iw/2)*2:ceil(ih/2)*2"
    repeat_edge = f"fillborders=right={scale * width % 2}:bottom={scale * height % 2}"
    # fmt: off
    # Not imageio_ffmpeg.write_frames: it ignores ffmpeg's exit code, so that a full disk would leave a broken video.
    command = [
        get_ffmpeg_exe(), "-y", "-loglevel", "error",
        "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(fps), "-i", "-",
        "-vf", f"{enlarge},{repeat_edge}",
        "-c:v", "libx264", "-preset", "veryfast", "-crf", "18", "-pix_fmt", "yuv420p",
        "-movflags", "+faststart",  # a browser can start before it has the whole file
        "-f", "mp4",
    ]
    # fmt: on
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial, tempfile.TemporaryFile() as raw:
        for image in itertools.chain([first], images):
            raw.write(image.numpy().tobytes())
        raw.seek(0)
        done = subprocess.run([*command, str(partial)], stdin=raw, capture_output=True)
        if done.returncode != 0:
            raise OSError(f"ffmpeg could not write {path}: {done.stderr.decode(errors='replace').strip()}")


def side_by_side(screens: Iterable[Any], frames: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yields pictures with a screen on the left and a frame on the right, enlarged up to the height of the screen.

    Args:
        screens (iterable of array): uint8 ``[H, W, 3]`` each, the rendered environment.
        frames (iterable of Tensor): uint8 ``[C, h, w]`` each, the frames of an agent's observations.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.training.videos import side_by_side
        >>> screen, frame = torch.zeros(210, 160, 3, dtype=torch.uint8), torch.zeros(1, 84, 84, dtype=torch.uint8)
        >>> [picture.shape for picture in side_by_side([screen], [frame])]
        [torch.Size([210, 336, 3])]
    """
    for screen, frame in zip(screens, frames, strict=True):
        left, right = torch.as_tensor(np.ascontiguousarray(screen)), frame.permute(1, 2, 0)[..., :3]
        factor = max(1, len(left) // len(right))
        right = right.repeat_interleave(factor, 0).repeat_interleave(factor, 1)
        height = max(len(left), len(right))
        picture = torch.zeros(height, left.shape[1] + _GAP + right.shape[1], 3, dtype=torch.uint8)
        for image, column in ((left, 0), (right, left.shape[1] + _GAP)):
            row = (height - len(image)) // 2
            picture[row : row + len(image), column : column + image.shape[1]] = image
        yield picture


def _rgb_images(frames: Iterable[Any]) -> Iterator[Tensor]:
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
            choices = "[3, H, W], [H, W, 3], or gray [1, H, W], [H, W, 1], [H, W]"
            raise ValueError(f"frame {index} has the shape {shape}; {choices} is needed")
        size = image.shape[:2] if size is None else size
        if image.shape[:2] != size:
            raise ValueError(f"frame {index} has the shape {shape}; the frames before are {list(size)} (height, width)")
        yield image.expand(-1, -1, 3).cpu()
