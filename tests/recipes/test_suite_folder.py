"""A suite's folder, the state of a run in it, which code a run is of, and how a suite is declared."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from mcurl_torchrl.training import RunDirectory, tables
from recipes import suite as script
from recipes.command_line import BadCommand
from recipes.reports.runs import find_runs
from recipes.suites import provenance, workers
from recipes.suites.board import Board
from recipes.suites.definition import PlannedRun, read_suite
from recipes.suites.folder import note_start
from recipes.suites.processes import Local, NotStarted
from recipes.suites.provenance import declare, marks
from recipes.suites.state import Progress, look, progress_in
from recipes.suites.workers import Job, last_message
from tests.recipes.running import SMALL, train

TINY = ["threads=1", "total_env_steps=40", "sac.random_agent_steps=10", "evaluation.video=false", "replay.capacity=200"]
SET = ["env=gym", "env.id=tests.recipes.tiny_envs:Dot-v0", "algo=rad", *SMALL, *TINY, "seed=1"]
PLANNED = PlannedRun("sac_mcurl", "gym", "rad", 1, tuple(SET))
YAML = """# a comment that stays
experiments:
  - recipe: sac_mcurl
    envs: [cartpole-swingup]
    algos: [rad]
    seeds: [1]
    overrides: [preset=smoke]
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return train(tmp_path_factory.mktemp("finished") / "run", *SET)


@pytest.fixture
def run(finished: RunDirectory, tmp_path: Path) -> RunDirectory:
    """A finished run that the test may change."""
    return RunDirectory(shutil.copytree(finished.path, tmp_path / "rad-seed1"))


def unfinish(run: RunDirectory) -> None:
    run.result.write_text(json.dumps({**json.loads(run.result.read_text()), "finished": False}))


# -- the state of a run ------------------------------------------------------------------------------------------------


def test_a_run_that_is_not_there(tmp_path: Path):
    assert look(PLANNED, RunDirectory(tmp_path / "nothing")).stage == "missing"
    assert not (tmp_path / "nothing").exists()


def test_a_run_started_by_hand_is_taken_over(run: RunDirectory):
    assert look(PLANNED, run).stage == "finished"
    other_threads = PlannedRun(
        "sac_mcurl", "gym", "rad", 1, tuple(given.replace("threads=1", "threads=2") for given in SET)
    )
    assert look(other_threads, run).stage == "finished"


def test_a_run_that_was_interrupted(run: RunDirectory):
    unfinish(run)
    assert look(PLANNED, run).stage == "interrupted"
    run.result.write_text("{")  # a damaged result is none
    assert look(PLANNED, run).stage == "interrupted"
    shutil.rmtree(run.checkpoints)
    assert "result.json is damaged" in look(PLANNED, run).reason


def first_lines(file: Path, count: int) -> None:
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:count]))


def test_a_finished_run_whose_files_contradict_each_other_does_not_count(run: RunDirectory):
    rows = tables.read(run.eval.path)
    assert [row["env_steps"] for row in rows] == [0, 30, 40]
    first_lines(run.eval.path, 3)  # an incomplete copy: the last evaluation is missing
    before = {file: file.read_bytes() for file in run.path.rglob("*.*") if file.is_file() and file.name != ".lock"}
    job = Job(PLANNED, run)
    job.start(Local(), nice=0)
    assert job.status == "refused" and job.process is None
    assert job.reason == (
        "it does not count as finished, and is not changed: eval.csv ends at 30 env steps, result.json says 40; to "
        f"run it again, move or delete {run.path}, and start the suite again"
    )
    assert before == {file: file.read_bytes() for file in before}
    (only,) = find_runs([run.path]).runs  # a report leaves it out for the same reason
    assert only.remarks[0] == "left out: eval.csv ends at 30 env steps, result.json says 40"
    job.end(0, retries=2, stopping=False)  # found when the process of the run has ended
    assert job.status == "refused"
    run.eval.path.unlink()
    assert "eval.csv is missing or empty" in look(PLANNED, run).reason


def test_a_finished_run_that_is_now_trained_for_longer_is_not_finished(run: RunDirectory):
    cfg = OmegaConf.load(run.config)
    cfg.total_env_steps = 80
    run.write_config(OmegaConf.to_yaml(cfg))
    longer = PlannedRun("sac_mcurl", "gym", "rad", 1, (*SET, "total_env_steps=80"))
    assert look(longer, run).stage == "interrupted"


def test_a_run_without_a_checkpoint_begins_anew(run: RunDirectory):
    unfinish(run)
    shutil.rmtree(run.checkpoints)
    assert "eval.csv has the last evaluation" in look(PLANNED, run).reason
    first_lines(run.eval.path, 3)
    (run.path / "error.log").write_text("what went wrong")
    assert look(PLANNED, run).stage == "unsaved"
    before = run.read_manifest()
    job = Job(PLANNED, run)
    job.start(Local(), nice=0)
    assert job.process.wait() == 0 and look(PLANNED, run).stage == "finished"
    assert run.read_manifest()["time"] > before["time"] and run.read_manifest()["resumed"] == []
    assert (run.path / "error.log").read_text() == "what went wrong"


@pytest.mark.parametrize("kept", ["eval.csv", "result.json", "checkpoints"])
def test_results_without_a_manifest_are_not_thrown_away(run: RunDirectory, kept: str, capsys: pytest.CaptureFixture):
    run.manifest.unlink()
    for file in (run.eval.path, run.result, run.metrics.path):
        if file.name != kept:
            file.unlink()
    if kept != "checkpoints":
        shutil.rmtree(run.checkpoints)
    before = sorted(run.path.rglob("*"))
    found = look(PLANNED, run)
    assert found.stage == "refused" and found.reason.startswith(f"has {kept}, but no manifest.json")
    with pytest.raises(BadCommand, match=f"has {kept}, but no manifest.json that says which run it is: restore it"):
        train(run.path, *SET)  # as a start by hand
    assert sorted(run.path.rglob("*")) in (before, sorted([*before, run.path / ".lock"]))


def test_a_result_that_was_not_written_is_written_when_the_run_is_resumed(run: RunDirectory):
    before = json.loads(run.result.read_text())
    for damage in (run.result.unlink, lambda: run.result.write_text("{")):
        damage()
        job = Job(PLANNED, run)
        job.start(Local(), nice=0)
        assert job.process.wait() == 0 and look(PLANNED, run).stage == "finished"
        after = json.loads(run.result.read_text())
        seconds = {"seconds", "seconds_evaluation"}
        assert {key: after[key] for key in after.keys() - seconds} == {
            key: before[key] for key in before.keys() - seconds
        }


def test_a_setting_that_only_tells_what_another_may_take_is_not_compared(run: RunDirectory):
    cfg = OmegaConf.load(run.config)
    cfg.env.following_camera_id = 7
    run.write_config(OmegaConf.to_yaml(cfg))
    assert look(PLANNED, run).stage == "finished"


def test_checkpoints_that_cannot_be_read_are_not_thrown_away(run: RunDirectory):
    unfinish(run)
    for checkpoint in run.checkpoints.glob("checkpoint-*"):
        checkpoint.write_text("{")
    found = look(PLANNED, run)
    assert found.stage == "refused" and "no checkpoint" in found.reason and str(run.checkpoints) in found.reason


def test_a_run_of_another_recipe(run: RunDirectory):
    found = look(PlannedRun("rainbow_mcurl", "RoadRunner", "mcurl", 1, ("env=RoadRunner",)), run)
    assert found.stage == "refused" and "a run of the recipe sac_mcurl, not of rainbow_mcurl" in found.reason


def test_a_run_with_other_settings(run: RunDirectory):
    other = PlannedRun("sac_mcurl", "gym", "rad", 1, (*SET, "sac.gamma=0.5"))
    found = look(other, run)
    assert found.stage == "refused" and "sac.gamma is 0.99, not 0.5" in found.reason


def test_a_copy_of_a_run_is_not_the_run_of_another_seed(run: RunDirectory):
    planned = PlannedRun("sac_mcurl", "gym", "rad", 2, (*SET[:-1], "seed=2"))
    found = look(planned, run)
    assert (found.stage, found.reason) == (
        "refused",
        "it holds a run with other settings, which is not changed: seed is 1, not 2",
    )


def test_a_setting_that_came_with_a_later_version_counts_where_it_is_set(run: RunDirectory):
    cfg = OmegaConf.load(run.config)
    del cfg.sac.gamma
    run.write_config(OmegaConf.to_yaml(cfg))
    assert look(PLANNED, run).stage == "finished"
    found = look(PlannedRun("sac_mcurl", "gym", "rad", 1, (*SET, "sac.gamma=0.5")), run)
    assert found.stage == "refused" and "sac.gamma is None, not 0.5" in found.reason


@pytest.mark.parametrize("name", ["manifest.json", "config.yaml"])
def test_a_damaged_run_is_refused(run: RunDirectory, name: str):
    (run.path / name).write_text("{")
    found = look(PLANNED, run)
    assert found.stage == "refused" and name in found.reason


def test_a_run_that_cannot_be_opened_is_refused(run: RunDirectory):
    (run.path / ".lock").unlink()
    (run.path / ".lock").mkdir()
    found = look(PLANNED, run)
    assert found.stage == "refused" and ".lock" in found.reason


def test_a_run_on_which_another_process_works(run: RunDirectory):
    with run.lock():
        found = look(PLANNED, run)
        pid = (run.path / ".lock").read_text().strip()
        assert found.stage == "in use" and found.reason == f"process {pid} works on it"
    assert look(PLANNED, run).stage == "finished"


def test_how_far_a_run_is(run: RunDirectory, tmp_path: Path):
    nothing = progress_in(RunDirectory(tmp_path / "nothing"), total=40)
    assert (nothing.env_steps, nothing.total, nothing.last_return, nothing.seconds_left) == (0, 40, None, None)
    evaluated = json.loads(run.result.read_text())
    rows = tables.read(run.metrics.path)
    run.metrics.path.unlink()
    for row, seconds in zip(rows[:3], (1.0, 5.0, 25.0), strict=True):
        run.metrics.append({**row, "seconds": seconds})
    run.write_result({**evaluated, "env_steps": 0, "finished": False})
    progress = progress_in(run, total=40)
    assert (progress.env_steps, progress.last_return) == (30, evaluated["final_return"])
    assert progress.seconds_left == pytest.approx(10 * 24 / 20)  # 20 steps took 24 seconds


# -- the table ---------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_table_is_drawn_over_itself(run: RunDirectory, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "120")
    stream, time = Terminal(), [0.0]
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr("recipes.suites.board.monotonic", lambda: time[0])
    board = Board("small")
    unfinish(run)
    jobs = [Job(PLANNED, run, "running"), Job(PLANNED, run, "failed", reason="OSError: no\nmore"), Job(PLANNED, run)]
    board.show(jobs)
    result = json.loads(run.result.read_text())
    counts, heading, running, failed = stream.getvalue().splitlines()
    assert counts == "small: 3 runs: 1 running, 1 waiting, 1 failed"
    assert heading.split() == ["env", "steps", "return", "time", "left"]
    row = rf"  running   sac_mcurl/gym/rad-seed1      40/40  {result['final_return']:>6,.1f}    0:00:00"
    assert running == row and len(heading) == len(running)
    assert failed == "  failed    sac_mcurl/gym/rad-seed1  OSError: no"
    board.show(jobs)  # too early
    assert len(stream.getvalue().splitlines()) == 4
    time[0] = 1.0
    board.note(jobs[1])
    assert "\x1b[4F\x1b[Jfailed    sac_mcurl/gym/rad-seed1  OSError: no\nmore\n" in stream.getvalue()
    assert str(jobs[1].log) in stream.getvalue()


@pytest.mark.parametrize(("columns", "shown"), [(80, "..."), (120, "rainbow_mcurl/RoadRunner/")])
def test_numbers_are_shown_beside_a_long_name(columns: int, shown: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", f"{columns}")
    progress = Progress(9_876_543, 10_000_000, -12_345.6, 99 * 3600 + 61.7)
    monkeypatch.setattr("recipes.suites.board.progress_in", lambda directory, total: progress)
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    overrides = ("env=RoadRunner", "preset=smoke", "threads=1")
    long = PlannedRun("rainbow_mcurl", "RoadRunner", "mcurl_actions-interleaved", 1, overrides)
    short = PlannedRun("rainbow_mcurl", "Pong", "mcurl", 1, overrides)
    statuses = {"running": long, "elsewhere": short, "failed": long}
    jobs = [Job(run, RunDirectory("nowhere"), status, "why" * 40) for status, run in statuses.items()]
    Board("small").show(jobs)
    Board("small").show(jobs[2:])
    _, heading, *rows, _, alone = stream.getvalue().splitlines()
    assert alone.count("why") >= 8 and shown in alone
    numbers = "9,876,543/10,000,000  -12,345.6   99:01:02"
    assert rows[0].endswith(f"interleaved-seed1  {numbers}") and rows[1].endswith(f"  {numbers}")
    assert rows[0].startswith(f"  running   {shown}") and rows[1].startswith("  elsewhere ")
    assert "/mcurl-seed1 " in rows[1] and "interleaved-seed1" in rows[2]
    assert {len(heading), len(rows[0]), len(rows[1])} == {79 if columns == 80 else 112}


def test_a_table_that_is_too_high_is_cut(run: RunDirectory, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "5")
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    Board("small").show([Job(PLANNED, run, "failed", reason="why" * 30)] * 9)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4 and lines[-1] == "... and 7 more" and max(map(len, lines)) == 39


def test_lines_where_there_is_no_terminal(run: RunDirectory, monkeypatch: pytest.MonkeyPatch):
    stream, time = io.StringIO(), [0.0]
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr("recipes.suites.board.monotonic", lambda: time[0])
    board = Board("small")
    job = Job(PLANNED, run, "done")
    board.note(job)
    returned = json.loads(run.result.read_text())["final_return"]
    assert stream.getvalue() == f"done      sac_mcurl/gym/rad-seed1  return {returned:,.1f}\n"
    board.show([job])
    assert stream.getvalue().count("\n") == 1  # now and then only
    time[0] = 301.0
    board.show([job, Job(PLANNED, run, "running")])
    assert "\x1b" not in stream.getvalue()
    assert "small: 2 runs: 1 done, 1 running\n  running   sac_mcurl/gym/rad-seed1" in stream.getvalue()


def test_one_run_is_no_runs(run: RunDirectory, capsys: pytest.CaptureFixture):
    Board("small").show([Job(PLANNED, run, "done")], now=True)
    Board("small").show([Job(PLANNED, run, "done")] * 2, now=True)
    assert capsys.readouterr().out.splitlines() == ["small: 1 run: 1 done", "small: 2 runs: 2 done"]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("agent step 3\nValueError: x=0; no\n(the traceback is in a)\nnothing was saved yet\n", "ValueError: x=0; no"),
        ("sac_mcurl.py: the run differs:\n  a: 1 -> 2\nuse b\n", "sac_mcurl.py: the run differs:\n  a: 1 -> 2\nuse b"),
        ("EnvironmentFailed: it\n(the traceback is in a)\nto resume from 3:\n  python\n", "EnvironmentFailed: it"),
        (
            "Warning: a\ntrained to the end, but the last checkpoint could not be saved; to resume from the "
            "checkpoint of agent step 3:\n",
            "trained to the end, but the last checkpoint could not be saved",
        ),
        ("agent step 3\nagent step 4\n", "agent step 4"),
        ("", ""),
    ],
)
def test_the_reason_of_a_failure_is_what_was_said_last(said: str, expected: str):
    assert last_message(said) == expected


class Failing:
    """A launcher whose runs end at once, each with the next of some exit codes and messages."""

    def __init__(self, *ends: tuple[int, str]) -> None:
        self._ends = iter(ends)

    def start(self, command: list[str], log: Path, **how: object) -> SimpleNamespace:
        code, said = next(self._ends)
        with open(log, "a") as output:
            output.write(f"agent step 0\n{said}\n")
        return SimpleNamespace(poll=lambda: code)


WRONG, OTHER = (1, "ValueError: x=0; it must be 1"), (1, "ValueError: y=0; it must be 1")
HOPELESS = f"{WRONG[1]}\n          (the same error twice, and no step was recorded: it is not tried again now)"


@pytest.mark.parametrize(
    ("ends", "attempts", "reason"),
    [
        ([WRONG, WRONG], 2, HOPELESS),
        ([OTHER, WRONG, WRONG], 3, HOPELESS),
        ([WRONG, OTHER, WRONG, OTHER], 4, OTHER[1]),
        ([(-9, ""), (-9, ""), (-9, ""), (-9, "")], 4, "killed by SIGKILL"),  # out of memory, for example
        ([WRONG, (-9, ""), WRONG, OTHER], 4, OTHER[1]),
    ],
)
def test_an_error_that_comes_again_before_the_first_step_is_the_last(
    ends: list[tuple[int, str]], attempts: int, reason: str, tmp_path: Path
):
    job = Job(PLANNED, RunDirectory(tmp_path / "rad-seed1"))
    launcher = Failing(*ends)
    while job.status == "waiting":
        job.start(launcher, nice=0)
        job.end(job.process.poll(), retries=3, stopping=False)
    assert (job.status, job.attempts, job.reason) == ("failed", attempts, reason)


def test_a_run_that_has_learned_something_is_tried_as_often_as_ever(run: RunDirectory):
    unfinish(run)
    job = Job(PLANNED, run)
    for attempt in (1, 2, 3):
        job.start(Failing(WRONG), nice=0)
        job.end(1, retries=2, stopping=False)
        assert (job.status, job.reason) == ("waiting" if attempt < 3 else "failed", WRONG[1])


def test_a_launcher_that_does_not_answer_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Down(Failing):
        def start(self, command: list[str], log: Path, **how: object) -> SimpleNamespace:
            raise NotStarted("sbatch: Socket timed out")

    monkeypatch.setattr(workers, "START_AGAIN_SECONDS", 0.3)
    jobs, board = [Job(PLANNED, RunDirectory(tmp_path / "rad-seed1"))], Board("small")
    began = time.monotonic()
    workers.work(jobs, Down(), board, SimpleNamespace(requested=False), at_once=1, nice=0, retries=1)
    assert (jobs[0].status, jobs[0].attempts) == ("failed", 2) and time.monotonic() - began >= 0.3
    assert jobs[0].reason == "it could not be started: sbatch: Socket timed out"


# -- suite.yaml --------------------------------------------------------------------------------------------------------


def write(folder: Path, text: str = YAML, name: str = "small"):
    file = folder / f"{name}.yaml"
    file.write_text(text)
    return read_suite(file, {}, str(folder / "runs"))


def test_a_folder_says_which_suite_it_holds(tmp_path: Path):
    note_start(write(tmp_path))
    first = OmegaConf.to_container(OmegaConf.load(tmp_path / "runs" / "suite.yaml"))
    assert first["name"] == "small" and first["started"] and "continued" not in first
    assert first["commit"] == provenance.current_commit()
    (experiment,) = first["experiments"]
    assert experiment == {
        **{"recipe": "sac_mcurl", "envs": ["cartpole-swingup"], "algos": ["rad"]},
        **{"seeds": [1], "overrides": ["preset=smoke"]},
    }
    note_start(write(tmp_path, YAML.replace("[1]", "[1, 2]")))  # more seeds may come
    second = OmegaConf.to_container(OmegaConf.load(tmp_path / "runs" / "suite.yaml"))
    assert second["experiments"][0]["seeds"] == [1, 2] and second["started"] == first["started"]
    assert len(second["continued"]) == 1


def test_two_suites_in_one_folder(tmp_path: Path):
    note_start(write(tmp_path))
    before = (tmp_path / "runs" / "suite.yaml").read_bytes()
    with pytest.raises(BadCommand, match="holds the suite small; give other another suite.dir"):
        note_start(write(tmp_path, name="other"))
    with pytest.raises(BadCommand, match="small with 1 run more, such as .*/rad-seed1; keep it in"):
        note_start(write(tmp_path, YAML.replace("[1]", "[2]")))
    assert (tmp_path / "runs" / "suite.yaml").read_bytes() == before


@pytest.mark.parametrize("damaged", [False, True])
def test_a_dry_run_refuses_a_folder_in_the_words_of_a_start(damaged: bool, tmp_path: Path):
    note_start(write(tmp_path))
    write(tmp_path, name="other")
    if damaged:
        (tmp_path / "runs" / "suite.yaml").write_text("name: other\n")
    before, said = (tmp_path / "runs" / "suite.yaml").read_bytes(), []
    for options in ([], ["dry_run=true"]):
        with pytest.raises(BadCommand, match="is damaged" if damaged else "give other another suite.dir") as raised:
            script.main([f"suite={tmp_path}/other.yaml", f"suite.dir={tmp_path}/runs", *options])
        said.append(str(raised.value))
    assert said[0] == said[1]
    assert (tmp_path / "runs" / "suite.yaml").read_bytes() == before


def test_a_folder_that_cannot_hold_a_suite(run: RunDirectory, tmp_path: Path):
    write(tmp_path)
    (tmp_path / "file").write_text("")
    for place, why in ((tmp_path / "file", "it is a file"), (run.path, "it is the folder of a run")):
        for options in ([], ["dry_run=true"]):
            with pytest.raises(BadCommand, match=rf"suite\.dir={place}: {why}|File exists"):
                script.main([f"suite={tmp_path}/small.yaml", f"suite.dir={place}", *options])


def test_the_folder_of_kept_results_can_be_used(tmp_path: Path):
    """Its suite.yaml is the declaration, which has no name."""
    suite = write(tmp_path)
    suite.folder.mkdir()
    (suite.folder / "suite.yaml").write_text(YAML)
    note_start(suite)
    assert OmegaConf.load(suite.folder / "suite.yaml").name == "small"


def test_a_damaged_suite_yaml(tmp_path: Path):
    note_start(write(tmp_path))
    for damaged, why in [
        ("name: small\n", "it has no 'experiments'"),
        ("- small\n", "it is no suite"),
        ("name: small\nexperiments: [", "line 2, column 15: .*"),
    ]:
        (tmp_path / "runs" / "suite.yaml").write_text(damaged)
        with pytest.raises(BadCommand, match=rf"suite.yaml is damaged: {why}\. Remove it"):
            note_start(write(tmp_path))


def test_one_suite_at_a_time(tmp_path: Path):
    write(tmp_path)
    with RunDirectory(tmp_path / "runs").lock(), pytest.raises(BadCommand, match=r"another suite\.py is running"):
        script.main([f"suite={tmp_path}/small.yaml", f"suite.dir={tmp_path}/runs"])


def test_a_dry_run_says_what_would_be_done(run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture):
    # The copied run has other settings than the suite's.
    shutil.copytree(run.path, tmp_path / "runs" / "sac_mcurl" / "cartpole-swingup" / "rad-seed1")
    write(tmp_path, YAML.replace("[1]", "[1, 2]"))
    assert script.main([f"suite={tmp_path}/small.yaml", f"suite.dir={tmp_path}/runs", "dry_run=true"]) == 0
    refused, missing = capsys.readouterr().out.splitlines()
    assert refused.startswith("refused    sac_mcurl/cartpole-swingup/rad-seed1  it holds a run with other settings")
    assert "env.task is None, not cartpole-swingup" in refused
    assert missing == "start      sac_mcurl/cartpole-swingup/rad-seed2"
    assert not (tmp_path / "runs" / "suite.yaml").exists()


def test_some_runs_of_a_suite(tmp_path: Path, capsys: pytest.CaptureFixture):
    suite = write(tmp_path, YAML.replace("[1]", "[1, 2, 3, 12]"))
    assert [run.seed for run in suite.runs_like("*")] == [1, 2, 3, 12]
    assert [run.seed for run in suite.runs_like("*/cartpole-swingup/*-seed2,*/rad-seed1*")] == [1, 2, 12]
    command = [f"suite={tmp_path}/small.yaml", f"suite.dir={tmp_path}/runs", "dry_run=true"]
    assert script.main([*command, "only=*-seed3"]) == 0
    assert capsys.readouterr().out == "start      sac_mcurl/cartpole-swingup/rad-seed3\n"
    said = "only=seed3 matches no run of small; a run is named like sac_mcurl/cartpole-swingup/rad-seed1"
    with pytest.raises(BadCommand, match=said):
        script.main([*command, "only=*-seed3,seed3"])


# -- which code --------------------------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with recipes, which provenance takes for its own."""
    root = tmp_path / "repository"
    for name in ("recipes/conf/suite/small.yaml", "recipes/launch.py", "mcurl_torchrl/code.py", "docs/text.md"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(YAML)
    git(tmp_path, "init", "--quiet", str(root))
    commit(root)
    monkeypatch.setattr(provenance, "RECIPES", root / "recipes")
    provenance.files_that_differ.cache_clear()
    return root


def commit(root: Path) -> str:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "a change")
    return git(root, "rev-parse", "HEAD")


def manifest(commit: str | None, dirty: bool = False, resumed: tuple[str, ...] = ()) -> dict:
    entries = [{"git": {"commit": other, "dirty": False}} for other in resumed]
    return {"git": commit and {"commit": commit, "dirty": dirty}, "resumed": entries}


def test_runs_of_other_code_are_marked(repository: Path):
    first = git(repository, "rev-parse", "HEAD")
    declared = {"commit": first, "time": "2026-01-01"}
    (repository / "docs" / "text.md").write_text("new")
    same_code = commit(repository)
    (repository / "mcurl_torchrl" / "code.py").write_text("new")
    other_code = commit(repository)
    assert marks(manifest(first), declared) == marks(manifest(same_code), declared) == []
    assert marks(manifest(other_code), None) == []
    expected = (
        f"of commit {other_code[:7]}, not of the declared {first[:7]}; 1 file with differences: mcurl_torchrl/code.py"
    )
    assert marks(manifest(other_code), declared) == [expected]
    assert marks(manifest(first, resumed=(same_code, other_code, other_code)), declared) == [expected]
    assert marks(manifest(first, dirty=True), declared) == ["with uncommitted changes"]
    assert marks(manifest("f" * 40), declared) == [f"of commit fffffff, not of the declared {first[:7]}"]
    assert marks(manifest(None), declared) == [f"of commit unknown, not of the declared {first[:7]}"]


def test_runs_from_before_the_declaration_are_marked(repository: Path):
    head = git(repository, "rev-parse", "HEAD")
    declared = {"commit": head, "time": "2026-01-02T00:00:00+00:00"}
    assert marks({**manifest(head), "time": "2026-01-02T00:00:00+00:00"}, declared) == []
    early = {**manifest(head), "time": "2026-01-02T00:59:59+01:00"}
    assert marks(early, declared) == ["started before the suite was declared"]


def test_a_mark_stands_beside_the_return(run: RunDirectory, repository: Path, capsys: pytest.CaptureFixture[str]):
    board = Board("small", {"commit": git(repository, "rev-parse", "HEAD"), "time": ""})
    board.note(Job(PLANNED, run, "done"))
    said = capsys.readouterr().out
    assert "(of commit " in said and "not of the declared" in said


def test_declaring_writes_commit_and_time(repository: Path):
    head = git(repository, "rev-parse", "HEAD")
    target = declare(read_suite(repository / "recipes" / "conf" / "suite" / "small.yaml", {}))
    assert target == repository / "benchmarks" / "suites" / "small.yaml"
    assert target.read_text().startswith(YAML)
    suite = read_suite(target, {})
    assert suite.declared["commit"] == head and suite.declared["time"].startswith("20")
    with pytest.raises(BadCommand, match="was already declared at "):
        declare(suite)
    commit(repository)
    with pytest.raises(BadCommand, match=r"small\.yaml is there already"):
        declare(read_suite(repository / "recipes" / "conf" / "suite" / "small.yaml", {}))


def test_declaring_a_file_of_ones_own(repository: Path):
    file = repository / "benchmarks" / "suites" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(YAML)  # in no commit yet, like what will be added to it
    assert declare(read_suite(file, {})) == file
    assert read_suite(file, {}).declared["commit"] == git(repository, "rev-parse", "HEAD")


@pytest.mark.parametrize(
    "text",
    ["{experiments: [{recipe: sac_mcurl, envs: [walker-walk], algos: [rad], seeds: [1]}]}", f"{YAML}declared:\n"],
)
def test_a_file_that_cannot_be_added_to_stays_as_it_is(repository: Path, text: str):
    file = repository / "benchmarks" / "suites" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(BadCommand, match="nothing can be added at its end"):
        declare(read_suite(file, {}))
    assert file.read_text() == text


def test_a_declared_suite_is_run_as_it_was_declared(repository: Path):
    target = declare(read_suite(repository / "recipes" / "conf" / "suite" / "small.yaml", {}))
    with pytest.raises(
        BadCommand, match=r"suite\.seeds: .*small\.yaml was declared at 20.*another plan is another suite"
    ):
        script.main([f"suite={target}", "suite.seeds=[1,2]", "dry_run=true"])


@pytest.mark.parametrize("name", ["mcurl_torchrl/code.py", "mcurl_torchrl/new.py"])
def test_nothing_is_declared_with_changes_that_are_in_no_commit(repository: Path, name: str):
    (repository / name).write_text("new")
    with pytest.raises(BadCommand, match=f"commit or revert these changes first: {name}"):
        declare(read_suite(repository / "recipes" / "conf" / "suite" / "small.yaml", {}))
    assert not (repository / "benchmarks").exists()


def test_declaring_takes_no_changes(tmp_path: Path):
    write(tmp_path)
    with pytest.raises(BadCommand, match="set seeds in the file"):
        script.main([f"suite={tmp_path}/small.yaml", "suite.seeds=[1,2]", "declare=true"])
