"""Reads a video back, for the tests that film."""

from __future__ import annotations

from pathlib import Path

import torch
from imageio_ffmpeg import read_frames


def read_video(path: str | Path) -> torch.Tensor:
    """Returns the frames of a video as uint8 ``[N, 3, H, W]``."""
    about, *frames = read_frames(str(path))
    width, height = about["size"]
    content = torch.frombuffer(bytearray(b"".join(frames)), dtype=torch.uint8)
    return content.view(-1, height, width, 3).permute(0, 3, 1, 2)
