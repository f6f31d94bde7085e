"""`mcurl runs` and `mcurl compare`: what they say of run directories as runs leave them."""

from __future__ import annotations

import errno
import os
from datetime import datetime
from pathlib import Path

import pytest
import torch

from mcurl_torchrl.training import Checkpoints, RunDirectory
from recipes import compare, runs
from recipes.command_line import BadCommand
from recipes.reports.runs import find_runs
from tests.recipes.run_folders import EVALUATIONS, change, write_run


def save(directory: RunDirectory, step: int = 5) -> None:
    Checkpoints(directory.checkpoints).save(step, components={"policy": torch.nn.Linear(1, 1)})


def fail(directory: RunDirectory, seconds: float) -> None:
    """Leaves a traceback, so many seconds after the run was started last."""
    started = datetime.fromisoformat(directory.read_manifest()["time"]).timestamp()
    (directory.path / "error.log").write_text("RuntimeError: no room\n")
    os.utime(directory.path / "error.log", (started + seconds, started + seconds))


def state(directory: RunDirectory) -> str:
    (run,) = find_runs([directory.path]).runs
    return runs.state_of(run, directory)


def test_states(tmp_path: Path) -> None:
    assert state(write_run(tmp_path / "finished", "env=Pong")) == "finished"
    under_way = write_run(tmp_path / "run", "env=Pong", evaluations=2)
    assert state(under_way) == "unsaved"
    save(under_way)
    assert state(under_way) == "interrupted"
    fail(under_way, seconds=60)
    assert state(under_way) == "failed"
    change(under_way.manifest, resumed=[{"step": 5, "time": "2099-01-01T00:00:00+00:00"}])
    assert state(under_way) == "interrupted", "it was resumed since, and did not fail again"
    with under_way.lock():
        assert state(under_way) == "running"


def test_a_folder_that_cannot_be_written_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(directory: RunDirectory) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("recipes.suites.state.user_of", read_only)
    assert state(write_run(tmp_path / "finished", "env=Pong")) == "finished"


def test_the_folders_of_a_sweep_are_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "env=Pong,seed=1", "env=Pong").path
    assert runs.main([str(folder)]) == 0
    assert "finished" in capsys.readouterr().out
    with pytest.raises(BadCommand, match="seed=2: there is no such option"):
        runs.main(["seed=2"])


def test_the_list_has_step_return_and_age(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "whole", "env=Pong", final=21.0)
    half = write_run(tmp_path / "below" / "half", "env=Breakout", final=100.0, evaluations=EVALUATIONS - 3)
    save(half)
    for file in half.path.iterdir():
        os.utime(file, (0, 0))
    assert runs.main([str(tmp_path)]) == 0
    first, second, third = (line.split("  ") for line in capsys.readouterr().out.splitlines())
    assert [word.strip() for word in first if word] == list(runs.COLUMNS)
    assert [word.strip() for word in second if word][:3] == ["finished", "100,000 of 100,000", "21.0"]
    told = [word.strip() for word in third if word]
    assert told[:3] == ["interrupted", "40,000 of 100,000", "40.0"]
    assert told[3].endswith(" d ago") and told[4] == str(half.path)


@pytest.mark.parametrize(
    ("seconds", "written"), [(-2, "0 s"), (59.9, "59 s"), (60, "1 min"), (7_300, "2 h"), (1e6, "11 d")]
)
def test_ages(seconds: float, written: str) -> None:
    assert runs.ago(seconds) == written


def test_a_damaged_run_does_not_hide_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "whole", "env=Pong")
    write_run(tmp_path / "torn", "env=Pong").config.write_text("seed: [")
    assert runs.main([str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "finished" in said.out and f"{tmp_path / 'torn'} cannot be read" in said.err


def test_compare_says_settings_code_and_curves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", "env=Pong", final=100.0)
    write_run(tmp_path / "b", "env=Pong", "rainbow.n_step=3", "threads=1", seed=2, final=200.0, commit="b" * 40)
    assert compare.main([str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"A: {tmp_path / 'a'}: Pong, mcurl, seed 1, finished, 100,000 of 100,000 env steps"
    start = said.index("settings that differ (A | B):")
    assert said[start + 1 : start + 5] == [
        "  rainbow.n_step: 20 | 3",
        "  seed: 1 | 2  (does not change the method)",
        "  threads: None | 1  (does not change the method)",
        "code: aaaaaaaaa | bbbbbbbbb",
    ]
    assert said[-3].split() == ["100,000", "100.0", "200.0", "+100.0"]
    assert said[-2] == "mean of B - A over 6 evaluations: +50.0"  # 0, 20, ... 100 below 0, 40, ... 200
    assert said[-1] == "first return of at least 100.0: A at 100,000 env steps, B at 60,000"


def test_compare_says_which_settings_one_of_them_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", "env=Pong", "algo=rainbow")
    write_run(tmp_path / "b", "env=Pong")
    compare.main([str(tmp_path / "a"), str(tmp_path / "b")])
    said = capsys.readouterr().out.splitlines()
    assert "  algo_name: rainbow | mcurl" in said
    (line,) = (line for line in said if line.startswith("  only "))
    assert line.startswith("  only B has ") and "objective.mask_ratio=0.5" in line


def test_compare_of_the_same_and_of_other_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", "env=Pong")
    write_run(tmp_path / "b", "env=Breakout")
    compare.main([str(tmp_path / "a")] * 2)
    assert "all settings are the same\ncode: commit aaaaaaaaa in both" in capsys.readouterr().out
    compare.main([str(tmp_path / "a"), str(tmp_path / "b")])
    assert capsys.readouterr().out.endswith("Pong and Breakout cannot be compared: they are different tasks\n")
    with pytest.raises(BadCommand, match=r"holds 2 runs, such as .*; name one of them"):
        compare.main([str(tmp_path), str(tmp_path / "a")])
