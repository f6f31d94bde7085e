"""Videos: written, decoded again, compared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mcurl_torchrl.training.videos import write_video
from tests.videos import read_video

RED, GREEN, BLUE = (220, 30, 20), (20, 200, 40), (30, 40, 210)


def plain(colours: list[tuple[int, int, int]], height: int, width: int) -> torch.Tensor:
    return torch.tensor(colours, dtype=torch.uint8)[:, :, None, None].expand(-1, -1, height, width)


def assert_close_colours(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.shape == expected.shape
    assert (actual.float() - expected.float()).abs().mean() < 4  # of 255: what the encoding costs


class TestRoundTrip:
    def test_frames_in_order_with_their_colours(self, tmp_path: Path) -> None:
        frames = plain([RED, GREEN, BLUE, GREEN, RED, RED, BLUE], 256, 320)
        write_video(tmp_path / "a.mp4", frames)
        assert_close_colours(read_video(tmp_path / "a.mp4"), frames)

    def test_each_pixel_becomes_a_square(self, tmp_path: Path) -> None:
        frames = torch.randint(256, (1, 3, 21, 21), dtype=torch.uint8).expand(3, -1, -1, -1)
        frames = frames.repeat_interleave(4, 2).repeat_interleave(4, 3)  # 84 x 84 with squares of 4 pixels
        write_video(tmp_path / "a.mp4", frames)
        back = read_video(tmp_path / "a.mp4")
        assert back.shape == (3, 3, 336, 336)
        centres = back[:, :, 8::16, 8::16]
        assert (centres.float() - frames[:, :, ::4, ::4].float()).abs().mean() < 8

    @pytest.mark.parametrize(("side", "expected"), [(84, 336), (100, 300), (256, 256)])
    def test_the_scale(self, side: int, expected: int, tmp_path: Path) -> None:
        write_video(tmp_path / "a.mp4", plain([RED, GREEN], side, side))
        assert read_video(tmp_path / "a.mp4").shape == (2, 3, expected, expected)

    def test_odd_sides_repeat_the_edge(self, tmp_path: Path) -> None:
        frames = plain([GREEN] * 3, 257, 301)
        write_video(tmp_path / "a.mp4", frames)
        back = read_video(tmp_path / "a.mp4")
        assert back.shape == (3, 3, 258, 302)
        assert_close_colours(back[..., -1, :], frames[..., 0, :1].expand(-1, -1, 302))
        assert_close_colours(back[..., :, -1], frames[..., :1, 0].expand(-1, -1, 258))

    def test_layouts(self, tmp_path: Path) -> None:
        first = plain([RED, BLUE], 256, 260)
        grey = torch.tensor([40, 200], dtype=torch.uint8)[:, None, None].expand(-1, 256, 260)
        as_rgb = grey[:, None].expand(-1, 3, -1, -1)
        for frames, expected in [
            (first.permute(0, 2, 3, 1), first),
            (list(first), first),
            ((frame.numpy() for frame in first), first),
            (np.ascontiguousarray(first.permute(0, 2, 3, 1).numpy()), first),
            (grey, as_rgb),
            (grey[:, None], as_rgb),
            (grey[..., None], as_rgb),
        ]:
            write_video(tmp_path / "a.mp4", frames)
            assert_close_colours(read_video(tmp_path / "a.mp4"), expected)

    def test_a_single_frame(self, tmp_path: Path) -> None:
        write_video(tmp_path / "a.mp4", plain([RED], 84, 84))
        assert len(read_video(tmp_path / "a.mp4")) == 1


def test_the_format_is_one_that_browsers_play(tmp_path: Path) -> None:
    import imageio_ffmpeg

    write_video(tmp_path / "a.mp4", plain([RED] * 10, 84, 84), fps=20)
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-hide_banner", "-i", str(tmp_path / "a.mp4")]
    told = subprocess.run(command, capture_output=True, text=True).stderr
    assert "Video: h264" in told and "yuv420p" in told and "20 fps" in told and "Duration: 00:00:00.50" in told
    content = (tmp_path / "a.mp4").read_bytes()
    assert content.index(b"moov") < content.index(b"mdat")  # playable before it is all there


def test_makes_the_folder_and_leaves_one_file(tmp_path: Path) -> None:
    write_video(tmp_path / "videos" / "a.mp4", plain([RED], 84, 84))
    assert [file.name for file in (tmp_path / "videos").iterdir()] == ["a.mp4"]


def test_a_failure_keeps_the_old_video(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(b"the old one")

    def frames():
        yield from plain([RED] * 3, 84, 84)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_video(path, frames())
    assert path.read_bytes() == b"the old one" and list(tmp_path.iterdir()) == [path]


def test_what_ffmpeg_says_is_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import imageio_ffmpeg

    broken = tmp_path / "ffmpeg"
    broken.write_text("#!/bin/sh\nhead -c 1000 >/dev/null\necho No space left on device >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", lambda: str(broken))
    with pytest.raises(OSError, match="No space left on device"):
        write_video(tmp_path / "a.mp4", plain([RED] * 50, 256, 256))
    assert list(tmp_path.iterdir()) == [broken]


def test_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_video(tmp_path / "a.mp4", plain([RED] * 3, 85, 85))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([], "frames is empty"),
        (torch.zeros(2, 4, 84, 84, dtype=torch.uint8), r"frame 0 has the shape \[4, 84, 84\]"),
        (torch.zeros(84, dtype=torch.uint8), r"frame 0 has the shape \[\]"),
        (torch.zeros(2, 3, 0, 84, dtype=torch.uint8), r"frame 0 has the shape \[3, 0, 84\]"),
        (torch.zeros(2, 3, 84, 84), "frame 0 has the dtype torch.float32"),
        (
            [torch.zeros(3, 84, 84, dtype=torch.uint8), torch.zeros(3, 84, 90, dtype=torch.uint8)],
            r"frame 1 has the shape \[3, 84, 90\]; the frames before are \[84, 84\]",
        ),
    ],
)
def test_bad_frames(frames: list[torch.Tensor], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        write_video(tmp_path / "a.mp4", frames)
    assert list(tmp_path.iterdir()) == []


def test_bad_options(tmp_path: Path) -> None:
    frames = plain([RED], 84, 84)
    with pytest.raises(ValueError, match="fps=0"):
        write_video(tmp_path / "a.mp4", frames, fps=0)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ImportError, match=r"imageio-ffmpeg: pip install 'mcurl-torchrl\[recipes\]'"):
        write_video(tmp_path / "a.mp4", plain([RED], 84, 84))
