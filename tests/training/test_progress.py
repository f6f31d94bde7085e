"""The progress bar and its plain lines, on a clock of our own."""

from __future__ import annotations

import contextlib
import errno
import io
import sys
import time
from typing import Any

import pytest
import torch

from mcurl_torchrl.training.progress import Progress


class Clock:
    now = 100.0


class Stream(io.StringIO):
    """Counts its writes, and may claim to be a terminal."""

    def __init__(self, terminal: bool = False) -> None:
        super().__init__()
        self.terminal = terminal
        self.writes = 0

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        self.writes += 1
        return super().write(text)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time, to be set by hand."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


def make(total: int, *, stream: Stream, **options: Any) -> Progress:
    """A progress that writes to a stream."""
    with contextlib.redirect_stderr(stream):
        return Progress(total, **options)


class TestLines:
    def test_the_first_within_seconds_then_every_ten(self, clock: Clock) -> None:
        stream, seen = Stream(), []
        progress = make(100_000, stream=stream)
        for tick in range(600):  # a minute
            clock.now = 100.0 + tick / 10
            before = stream.writes
            progress.update(tick)
            if stream.writes > before:
                seen.append(tick / 10)
        assert seen == [2.0, 12.0, 22.0, 32.0, 42.0, 52.0]
        assert len(stream.getvalue().splitlines()) == 6

    def test_the_content(self, clock: Clock) -> None:
        stream = Stream()
        progress = make(12_500, initial=2_000, stream=stream)
        progress.update(2_001, eval_return=1234.5)
        clock.now += 10
        progress.update(2_500, contrastive_accuracy=torch.tensor(0.25, requires_grad=True))
        assert stream.getvalue() == (
            "agent step 2,500/12,500 (20%) | 50 steps/s | 0:03:20 left"
            " | eval return 1,234.5 | contrastive accuracy 0.25\n"
        )

    def test_the_rate_forgets_a_fast_start(self, clock: Clock) -> None:
        stream = Stream()
        progress = make(1_000_000, stream=stream)
        step = 0
        for second in range(200):
            clock.now += 1
            step += 1000 if second < 50 else 10
            progress.update(step)
        assert "| 10 steps/s |" in stream.getvalue().splitlines()[-1]

    def test_a_pause_does_not_make_the_time_left_jump(self, clock: Clock) -> None:
        stream = Stream()
        progress = make(1_000_000, stream=stream)
        for second in range(1000):
            clock.now += 1
            progress.update(10 * second)
        clock.now += 60  # an evaluation
        progress.update(10_000)
        rate = float(stream.getvalue().splitlines()[-1].split(" steps/s")[0].split()[-1])
        assert 8.5 < rate < 10

    def test_the_end_is_told_once(self, clock: Clock) -> None:
        stream = Stream()
        progress = make(100, stream=stream)
        clock.now += 1
        progress.update(100)
        assert stream.getvalue() == ""
        clock.now += 61
        progress.close()
        clock.now += 5
        progress.close()
        assert stream.getvalue() == "agent step 100/100 (100%) | 1.61 steps/s | done in 0:01:02\n"

    def test_closing_does_not_repeat_the_last_line(self, clock: Clock) -> None:
        stream = Stream()
        progress = make(100, stream=stream)
        clock.now += 2
        progress.update(100)
        clock.now += 1
        progress.close()
        assert len(stream.getvalue().splitlines()) == 1
        stopped = make(200, stream=stream)
        clock.now += 2
        stopped.update(100)
        clock.now += 1
        stopped.close()
        assert len(stream.getvalue().splitlines()) == 2

    def test_notes_are_lines(self, clock: Clock) -> None:
        stream = Stream()
        progress = make(100, stream=stream)
        progress.note("a checkpoint was written")
        assert stream.getvalue() == "a checkpoint was written\n"

    def test_a_log_on_a_full_disk_does_not_end_the_run(self, clock: Clock) -> None:
        class Full(Stream):
            def write(self, text: str) -> int:
                raise OSError(errno.ENOSPC, "No space left on device")

        progress = make(100, stream=Full())
        progress.note("a checkpoint was written")
        clock.now += 2
        progress.update(50)
        progress.close()


class TestBar:
    def test_draws_at_most_four_times_a_second(self, clock: Clock) -> None:
        stream = Stream(terminal=True)
        progress = make(100_000, stream=stream)
        start = stream.getvalue().count("\r")
        for tick in range(10_000):  # ten seconds
            clock.now = 100.0 + tick / 1000
            progress.update(tick)
        draws = stream.getvalue().count("\r") - start
        assert 30 <= draws <= 40
        progress.close()

    def test_the_content(self, clock: Clock) -> None:
        stream = Stream(terminal=True)
        progress = make(12_500, initial=2_000, stream=stream)
        clock.now += 10
        progress.update(2_500, eval_return=181.25, contrastive_accuracy=0.5)
        last = stream.getvalue().split("\r")[-1]
        assert " 20%|" in last
        assert (
            "| agent step 2,500/12,500 | 50 steps/s | 0:03:20 left | eval return 181.2 | contrastive accuracy 0.50"
            in last
        )
        progress.close()
        assert stream.getvalue().endswith("\n")

    def test_a_note_clears_the_bar_and_the_bar_comes_back(self, clock: Clock) -> None:
        stream = Stream(terminal=True)
        progress = make(100, stream=stream)
        clock.now += 1
        progress.update(50)
        progress.note("a checkpoint was written")
        blank, note = stream.getvalue().split("\r")[-3:-1]
        assert blank.strip() == "" and note == "a checkpoint was written\n"
        assert "50/100" in stream.getvalue().split("\r")[-1]
        progress.close()

    def test_needs_tqdm_only_for_a_bar(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "tqdm", None)
        make(100, stream=Stream())
        with pytest.raises(ImportError, match=r"pip install 'mcurl-torchrl\[recipes\]'"):
            make(100, stream=Stream(terminal=True))


def test_between_draws_nothing_is_read_or_written(clock: Clock) -> None:
    class Costly:
        def __float__(self) -> float:
            raise AssertionError("read although nothing was drawn")

    for stream in (Stream(), Stream(terminal=True)):
        progress = make(100_000, stream=stream)
        progress.update(0)
        writes = stream.writes
        for step in range(1000):
            progress.update(step, loss=Costly())
        assert stream.writes == writes


def test_switched_off_it_still_prints_notes(clock: Clock) -> None:
    stream = Stream(terminal=True)
    progress = make(100, enabled=False, stream=stream)
    for step in range(100):
        clock.now += 1
        progress.update(step)
    progress.note("a checkpoint was written")
    progress.close()
    assert stream.getvalue() == "a checkpoint was written\n"


def test_writes_to_the_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(100)
    progress.update(100)
    progress.close()
    printed = capsys.readouterr()
    assert "100/100" in printed.err and printed.out == ""


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="total=0"):
        Progress(0)
    with pytest.raises(ValueError, match="initial=11"):
        Progress(10, initial=11)


def test_a_restart_forgets_the_speed_of_before(clock: Clock) -> None:
    stream = Stream()
    progress = make(1_000, stream=stream)
    clock.now += 100  # a hundred seconds for nothing: an evaluation
    progress.update(1)
    progress.restart()
    clock.now += 10
    progress.update(101)
    assert "| 10 steps/s | 0:01:30 left" in stream.getvalue().splitlines()[-1]
