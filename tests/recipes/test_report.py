"""Reports: what is averaged, what is not, what the numbers are, and what the page says."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from scipy import stats

from mcurl_torchrl.training import RunDirectory, human_normalized_score
from recipes import command_line, published_scores, report
from recipes.command_line import BadCommand
from recipes.reports import groups as report_groups
from recipes.reports import runs as report_runs
from tests.recipes.run_folders import COMMIT, change, write_run
from tests.recipes.running import RECIPES, SMALL, settings, train
from tests.warm_start import run_python

FINALS = {
    ("RoadRunner", "mcurl"): [6000.0, 8000.0, 10000.0],
    ("RoadRunner", "rainbow"): [5000.0, 8000.0, 8500.0],
    ("Pong", "mcurl"): [-10.0, -16.0, 5.0],
    ("Pong", "rainbow"): [-20.0, -18.0, -16.0],
}
SCALE = {"RoadRunner": (11.5, 7845.0), "Pong": (-20.7, 14.6)}


def write_suite(folder: Path, finals: dict[tuple[str, str], list[float]] = FINALS) -> None:
    for (game, algo), scores in finals.items():
        for seed, final in enumerate(scores, start=1):
            place = folder / "rainbow_mcurl" / game / f"{algo}-seed{seed}"
            write_run(place, f"env={game}", f"algo={algo}", "preset=cpu", seed=seed, final=final)


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    write_suite(folder)
    return folder


class Made:
    """A report that was made, read back."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.markdown = (out / "report.md").read_text(encoding="utf-8")
        self.html = (out / "report.html").read_text(encoding="utf-8")
        with open(out / "report.csv", newline="", encoding="utf-8") as file:
            self.records = list(csv.DictReader(file))

    def number(self, **wanted: Any) -> tuple[float, float | None, float | None]:
        (row,) = [row for row in self.records if all(row[key] == str(value) for key, value in wanted.items())]
        low, high = (float(row[key]) if row[key] else None for key in ("low", "high"))
        return float(row["value"]), low, high

    def methods(self, kind: str = "task") -> set[str]:
        return {row["method"] for row in self.records if row["kind"] == kind}


def make(out: Path, *folders: Path, more: tuple[str, ...] = ()) -> Made:
    listed = ",".join(command_line.quoted(folder) for folder in folders)
    given = f"runs=[{listed}]" if len(folders) > 1 else f"runs={listed}"
    report.main(settings(given, f"out={command_line.quoted(out)}", *more, recipe="report"))
    return Made(out)


def grouped(folder: Path) -> tuple[report_runs.Found, report_groups.Grouping]:
    """The results of a report, before anything is drawn."""
    found = report_runs.find_runs([folder])
    return found, report_groups.group_runs(found.runs)


@pytest.fixture(scope="module")
def made(suite: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("out") / "report", suite)


def normalized(game: str, scores: list[float]) -> np.ndarray:
    random, human = SCALE[game]
    return np.array([human_normalized_score(score, random=random, human=human) for score in scores])


# -- the numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "method"), FINALS)
def test_each_task_has_mean_and_students_interval(made: Made, task: str, method: str):
    finals = FINALS[task, method]
    expected = stats.t.interval(0.95, 2, loc=np.mean(finals), scale=stats.sem(finals))
    found = made.number(kind="task", task=task, method=method, quantity="final return")
    assert found == pytest.approx((np.mean(finals), *expected))
    found = made.number(kind="task", task=task, method=method, quantity="human-normalised score")
    assert found[0] == pytest.approx(normalized(task, finals).mean())


def test_aggregates_over_tasks(made: Made):
    for method in ("mcurl", "rainbow"):
        scores = [normalized(task, FINALS[task, method]) for task in SCALE]
        pooled = np.concatenate(scores)
        expected = {
            "IQM": np.sort(pooled)[1:5].mean(),
            "median": np.median([task.mean() for task in scores]),
            "mean": np.mean([task.mean() for task in scores]),
            "optimality gap": 1 - np.minimum(pooled, 1).mean(),
        }
        for name, value in expected.items():
            found = made.number(kind="aggregate", method=method, quantity=f"{name} of human-normalised score")
            assert found[0] == pytest.approx(value)
            assert found[1] < value < found[2]


def test_methods_are_compared_by_pairs_of_seeds(made: Made):
    pairs = {task: (np.array(FINALS[task, "mcurl"]), np.array(FINALS[task, "rainbow"])) for task in SCALE}
    better = np.mean([((x[:, None] > y) + 0.5 * (x[:, None] == y)).mean() for x, y in pairs.values()])
    assert made.number(quantity="probability of improvement")[0] == pytest.approx(better)
    for task, (x, y) in pairs.items():
        interval = stats.ttest_rel(x, y).confidence_interval()
        found = made.number(quantity="difference of final returns", task=task)
        assert found == pytest.approx(((x - y).mean(), interval.low, interval.high))
    assert "| mcurl | rainbow | 0.7" in made.markdown and "not paired" not in made.markdown


def test_methods_are_compared_by_the_seeds_that_both_have(tmp_path: Path):
    write_suite(tmp_path / "runs", {("Pong", "mcurl"): [1.0, 3.0, 8.0, 20.0], ("Pong", "rainbow"): [2.0, 2.0, 4.0]})
    for seed in (7, 8):
        write_run(tmp_path / f"runs/curl-seed{seed}", "env=Pong", "algo=curl", "preset=cpu", seed=seed, final=9.0)
    made = make(tmp_path / "out", tmp_path / "runs")
    interval = stats.ttest_rel([1.0, 3.0, 8.0], [2.0, 2.0, 4.0]).confidence_interval()
    about = {"quantity": "difference of final returns", "method": "mcurl", "other": "rainbow"}
    assert made.number(**about) == pytest.approx((4 - 8 / 3, interval.low, interval.high))
    about["quantity"] = "probability of improvement"
    assert made.number(**about)[0] == pytest.approx((0 + 2 + 3) / 9)
    assert made.markdown.count("| paired: 1, 2, 3 (1 left out) |") == 2
    assert made.markdown.count("| not paired: no seed in common |") == 4
    assert made.number(quantity="difference of final returns", method="curl", other="mcurl")[0] == pytest.approx(1)


def test_a_single_task_has_one_interval(tmp_path: Path):
    """The bootstrap's would be narrower than Student's, for the same number."""
    write_suite(tmp_path / "runs", {("Pong", "mcurl"): [1.0, 3.0, 8.0], ("Pong", "rainbow"): [1.0, 2.0, 4.0]})
    made = make(tmp_path / "out", tmp_path / "runs")
    assert made.number(quantity="mean of human-normalised score", method="mcurl")[1:] == (None, None)
    low, high = stats.t.interval(0.95, 2, loc=4, scale=stats.sem([1.0, 3.0, 8.0]))
    said = f"- Atari, Pong, 100,000 env steps, mean final return: mcurl 4.0 [{low:.1f}, {high:.1f}]; rainbow 2.3 ["
    assert said in made.markdown
    assert not (made.out / "figures" / "atari-1-aggregates.png").exists()
    assert (made.out / "figures" / "atari-1-profiles.png").exists()


def test_final_and_best_are_both_there(tmp_path: Path):
    for seed in (1, 2, 3):
        write_run(tmp_path / f"runs/{seed}", "env=Pong", "preset=cpu", seed=seed, final=5.0 * seed, best=40.0 * seed)
    made = make(tmp_path / "out", tmp_path / "runs")
    assert made.number(kind="task", quantity="final return")[0] == pytest.approx(10)
    assert made.number(kind="task", quantity="best evaluation's return")[0] == pytest.approx(80)
    assert made.number(kind="task", quantity="minutes of training")[0] == pytest.approx(10)
    assert made.number(kind="task", quantity="minutes of evaluation")[0] == pytest.approx(1)


def test_dmcontrol_is_divided_by_1000_and_gymnasium_has_no_scale(tmp_path: Path):
    for seed in (1, 2, 3):
        write_run(tmp_path / f"runs/dmc{seed}", "preset=cpu", recipe="sac_mcurl", seed=seed, final=100.0 * seed)
        dot = ["env=gym", "env.id=tests.recipes.tiny_envs:Dot-v0", "preset=cpu"]
        write_run(tmp_path / f"runs/gym{seed}", *dot, recipe="sac_mcurl", seed=seed)
    made = make(tmp_path / "out", tmp_path / "runs")
    assert made.number(kind="aggregate", benchmark="dmc", quantity="mean of return / 1000")[0] == pytest.approx(0.2)
    assert not [row for row in made.records if row["kind"] == "aggregate" and row["benchmark"] == "gym"]
    assert "no common scale" in made.markdown


# -- published results -------------------------------------------------------------------------------------------------


def test_published_rows_have_budget_seeds_and_source(made: Made):
    rows = [row for row in made.records if row["kind"] == "published" and row["task"] == "RoadRunner"]
    assert {row["method"]: (float(row["value"]), row["env_steps"], row["seeds"]) for row in rows} == {
        "SimPLe": (5640.6, "100000", "5"),
        "OTRainbow": (2696.7, "100000", "5"),
        "data-efficient Rainbow": (9600.0, "100000", "5"),
        "CURL": (5661.0, "100000", "20"),
        "M-CURL": (8890.0, "100000", "5"),
    }
    assert all("arXiv 2010.07470" in row["source"] for row in rows)
    assert "| MLR | 0.432 |" in made.markdown and "| ours: mcurl (preset=cpu) | 8,000 [" in made.markdown


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ("preset=paper", ""),
        ("preset=cpu env=cheetah-run", " (preset=cpu)"),
        ("preset=cpu", " (preset=cpu, env.camera_id=1)"),
        ("preset=paper env.camera_id=1", " (env.camera_id=1)"),
    ],
)
def test_our_rows_say_what_published_runs_do_not_share(chosen: str, told: str, tmp_path: Path):
    write_run(tmp_path / "runs/a", *chosen.split(), "total_env_steps=100000", recipe="sac_mcurl")
    assert f"| ours: mcurl{told} | " in make(tmp_path / "out", tmp_path / "runs").markdown


def test_published_means_over_the_same_tasks(made: Made):
    scores = [normalized("RoadRunner", [8890.0])[0], normalized("Pong", [-16.8])[0]]
    assert f"| M-CURL (published) | 5 | – | {np.median(scores):.3f} | {np.mean(scores):.3f} | – |" in made.markdown


def test_all_published_rows_are_read():
    dmc = published_scores.published_dmc()
    assert (
        len(dmc) == 220
        and len({row.task for row in dmc}) == 16
        and {row.env_steps for row in dmc} == {100_000, 500_000}
    )
    assert {row.seeds for row in dmc if row.method == "curl"} == {10, None}
    assert len(published_scores.published_atari()) == 26 * 5
    assert {row.method: row.iqm for row in published_scores.published_aggregates()}["BBF (replay ratio 8)"] == 1.033


def test_the_median_of_the_papers_table():
    """M-CURL's paper gives these medians itself: random and human scores, games and columns are as it has them."""
    medians = {}
    for label in ("CURL", "M-CURL", "data-efficient Rainbow", "SimPLe"):
        rows = [row for row in published_scores.published_atari() if row.label == label]
        scales = [published_scores.random_and_human_score(row.task) for row in rows]
        scores = [(row.mean - low) / (high - low) for row, (low, high) in zip(rows, scales, strict=True)]
        medians[label] = round(float(np.median(scores)), 3)
    assert medians == {"CURL": 0.175, "M-CURL": 0.242, "data-efficient Rainbow": 0.161, "SimPLe": 0.144}


def test_the_next_larger_published_budget(tmp_path: Path):
    write_run(tmp_path / "runs/a", "preset=cpu", "total_env_steps=200000", recipe="sac_mcurl")
    made = make(tmp_path / "out", tmp_path / "runs")
    assert {row["env_steps"] for row in made.records if row["kind"] == "published"} == {"500000"}


def test_a_missing_published_file(suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    made = make(tmp_path / "out", suite, more=(f"published={tmp_path}",))
    assert "no published rows, and no human-normalised scores" in made.markdown
    assert "atari100k.csv" in capsys.readouterr().out
    assert not [row for row in made.records if row["kind"] in ("aggregate", "published")]
    assert made.number(kind="task", task="Pong", method="mcurl", quantity="final return")[0] == pytest.approx(-7)
    shutil.copy(published_scores.PUBLISHED / "atari100k.csv", tmp_path)
    made = make(tmp_path / "out", suite, more=(f"published={tmp_path}",))
    assert "atari100k_methods.csv" in made.markdown and "aggregate" in {row["kind"] for row in made.records}


# -- what is not averaged ----------------------------------------------------------------------------------------------


def test_fewer_than_three_seeds_have_no_interval_and_the_page_says_why(tmp_path: Path):
    write_suite(tmp_path / "runs", {("Pong", "mcurl"): [1.0, 3.0], ("Pong", "rainbow"): [1.0, 2.0, 4.0]})
    made = make(tmp_path / "out", tmp_path / "runs")
    assert made.number(kind="task", method="mcurl", quantity="final return") == (2.0, None, None)
    assert made.number(kind="task", method="rainbow", quantity="final return")[1] is not None
    assert made.number(quantity="probability of improvement")[1:] == (None, None)
    assert "fewer than 3 seeds" in made.markdown and "mcurl on Pong (2 seeds)" in made.markdown
    (sentence,) = re.findall("- Atari: a run of mcurl ends higher .*", made.markdown)
    assert sentence.endswith("on Pong; the difference of their mean final returns is 0.5.")  # never with an interval
    assert not (made.out / "figures" / "atari-improvement.png").exists()  # points alone would look certain


def test_other_settings_are_kept_apart_and_named(tmp_path: Path):
    for seed in (1, 2):
        write_run(tmp_path / f"runs/a{seed}", "env=Pong", "preset=cpu", seed=seed, final=1.0)
        write_run(tmp_path / f"runs/b{seed}", "env=Pong", "preset=cpu", "rainbow.n_step=3", seed=seed, final=5.0)
    made = make(tmp_path / "out", tmp_path / "runs")
    assert made.methods() == {"mcurl (n_step=3)", "mcurl (n_step=20)"}
    assert made.number(kind="task", method="mcurl (n_step=3)", quantity="final return")[0] == 5
    assert "| `rainbow.n_step` | 20 | 3 |" in made.markdown


@pytest.mark.parametrize(
    "setting",
    ["threads=2", "device=cpu", "logging.tensorboard=false", "evaluation.video=false", "checkpoint.keep_last=5"],
)
def test_settings_that_change_nothing_keep_nothing_apart(tmp_path: Path, setting: str):
    write_run(tmp_path / "runs/a", "env=Pong", "preset=cpu", seed=1)
    write_run(tmp_path / "runs/b", "env=Pong", "preset=cpu", setting, seed=2)
    _, grouping = grouped(tmp_path)
    assert [(group.method, group.seeds) for group in grouping.groups] == [("mcurl", [1, 2])] and not grouping.splits


def test_many_differing_settings_are_numbered(tmp_path: Path):
    options = ["rainbow.n_step=3", "rainbow.gamma=0.9", "rainbow.lr=0.1"]
    for number in range(8):
        chosen = [option for place, option in enumerate(options) if number >> place & 1]
        write_run(tmp_path / f"runs/{number}", "env=Pong", "preset=cpu", *chosen)
    _, grouping = grouped(tmp_path)
    assert {group.method for group in grouping.groups} == {f"mcurl (settings {number})" for number in range(1, 9)}


def test_runs_of_different_lengths(tmp_path: Path):
    for name, steps in (("a", 100_000), ("b", 50_000)):
        for algo in ("mcurl", "rainbow"):
            run = tmp_path / f"runs/{name}/{algo}-seed1"
            write_run(run, "env=Pong", "preset=cpu", f"algo={algo}", f"total_env_steps={steps}")
    made = make(tmp_path / "out", tmp_path / "runs")
    compared = {(row["method"], row["other"]) for row in made.records if row["kind"] == "comparison"}
    short, long = "(total_env_steps=50000)", "(total_env_steps=100000)"
    assert compared == {(f"mcurl {length}", f"rainbow {length}") for length in (short, long)}
    assert "Over Pong, 50,000 env steps" in made.markdown and "Over Pong, 100,000 env steps" in made.markdown


def test_settings_of_tasks_may_differ_between_tasks_but_no_others(tmp_path: Path):
    for place, task in enumerate(["cartpole-swingup", "cheetah-run", "walker-walk"]):
        more = ["encoder.num_filters=8"] if place == 2 else []
        write_run(tmp_path / f"runs/{task}", f"env={task}", "preset=cpu", *more, recipe="sac_mcurl")
    made = make(tmp_path / "out", tmp_path / "runs")
    assert made.methods() == {"mcurl (num_filters=16)", "mcurl (num_filters=8)"}
    assert made.number(method="mcurl (num_filters=16)", quantity="IQM of return / 1000", kind="aggregate")
    assert "`env.action_repeat`" in made.markdown and "`sac.lr`" in made.markdown


def test_a_run_with_another_action_repeat_is_kept_apart_and_the_tasks_stay_together(tmp_path: Path):
    for task in ("cartpole-swingup", "cheetah-run"):  # whose action repeats are 8 and 4
        for seed in (1, 2):
            write_run(tmp_path / f"runs/{task}{seed}", f"env={task}", "preset=cpu", recipe="sac_mcurl", seed=seed)
    other = ["env=cartpole-swingup", "preset=cpu", "env.action_repeat=2"]
    write_run(tmp_path / "runs/other", *other, recipe="sac_mcurl", seed=3)
    made = make(tmp_path / "out", tmp_path / "runs")
    assert made.methods() == {"mcurl (action_repeat=of the task)", "mcurl (action_repeat=2)"}
    over = {row["tasks"] for row in made.records if row["kind"] == "aggregate" and "of the task" in row["method"]}
    assert "cartpole-swingup cheetah-run" in over


def test_methods_are_compared_on_the_tasks_that_they_share(tmp_path: Path):
    finals = {("Pong", "mcurl"): [1.0], ("Pong", "rainbow"): [2.0], ("RoadRunner", "mcurl"): [3.0]}
    write_suite(tmp_path / "runs", finals)
    made = make(tmp_path / "out", tmp_path / "runs")
    wanted = {"kind": "aggregate", "quantity": "mean of human-normalised score"}
    over = {(row["method"], row["tasks"]) for row in made.records if {**row, **wanted} == row}
    assert over == {("mcurl", "Pong RoadRunner"), ("mcurl", "Pong"), ("rainbow", "Pong")}


def test_another_recipe_mixed_in(suite: Path, tmp_path: Path):
    shutil.copytree(suite, tmp_path / "runs")
    write_run(tmp_path / "runs/rainbow_mcurl/Pong/sac-seed1", "preset=cpu", "algo=sac", recipe="sac_mcurl", final=500.0)
    dot = ["env=gym", "env.id=tests.recipes.tiny_envs:Dot-v0", "preset=cpu"]
    write_run(tmp_path / "runs/x/mcurl-seed1", *dot, recipe="sac_mcurl", final=1.0)
    write_run(tmp_path / "runs/y/mcurl-seed1", *dot, recipe="rainbow_mcurl", final=2.0)
    made = make(tmp_path / "out", tmp_path / "runs")
    assert made.number(kind="task", benchmark="dmc", method="sac", quantity="final return")[0] == 500
    assert made.number(kind="task", task="Pong", method="mcurl", quantity="final return")[0] == pytest.approx(-7)
    assert {"mcurl of sac_mcurl", "mcurl of rainbow_mcurl"} < made.methods()


def test_one_seed_twice(tmp_path: Path):
    first = write_run(tmp_path / "runs/a/mcurl-seed1", "env=Pong", "preset=cpu", seed=1, final=4.0)
    again = write_run(tmp_path / "runs/b/mcurl-seed1", "env=Pong", "preset=cpu", seed=1, final=20.0)
    change(first.manifest, time="2026-01-02T00:00:00+00:00")
    change(again.manifest, time="2026-01-01T00:00:00+00:00")
    write_run(tmp_path / "runs/a/mcurl-seed2", "env=Pong", "preset=cpu", seed=2, final=10.0)
    made = make(tmp_path / "out", tmp_path / "runs")
    assert made.number(kind="task", quantity="final return")[0] == 15  # the one that was started first, and seed 2
    assert f"left out: seed 1 has two runs; `{again.path}` counts" in made.markdown


def test_unfinished_runs_are_listed_and_not_averaged(tmp_path: Path):
    write_run(tmp_path / "runs/mcurl-seed1", "env=Pong", "preset=cpu", seed=1, final=4.0)
    write_run(tmp_path / "runs/mcurl-seed2", "env=Pong", "preset=cpu", seed=2, final=400.0, evaluations=3)
    made = make(tmp_path / "out", tmp_path / "runs")
    assert made.number(kind="task", quantity="final return")[0] == 4
    assert "2 runs: 1 finished, 1 unfinished." in made.markdown
    assert "| 2 | unfinished | 60,000 of 100,000 | – | – |" in made.markdown


def test_a_run_that_failed_says_with_what(tmp_path: Path):
    run = write_run(tmp_path / "runs/a", "env=Pong", "preset=cpu", evaluations=2)
    (run.path / "error.log").write_text("Traceback\n  line\nOSError: no room\n\n")
    (found,) = report_runs.find_runs([tmp_path]).runs
    assert found.status == "unfinished" and found.remarks == ("error.log ends with OSError: no room",)


def test_nothing_finished_yet(tmp_path: Path):
    write_run(tmp_path / "runs/a", "env=Pong", "preset=cpu", evaluations=2)
    (tmp_path / "runs/b").mkdir()
    write_run(tmp_path / "runs/b", "env=Qbert", "preset=cpu", evaluations=0)
    for name in ("eval.csv", "result.json"):
        (tmp_path / "runs/b" / name).unlink()
    made = make(tmp_path / "out", tmp_path / "runs")
    assert "No run is finished" in made.markdown and "Qbert: no evaluation yet." in made.markdown
    assert (made.out / "figures/atari-Pong.png").is_file()


def test_a_run_that_is_to_go_on_for_longer_is_not_finished(tmp_path: Path):
    run = write_run(tmp_path / "runs/a", "env=Pong", "preset=cpu")
    run.config.write_text(run.config.read_text().replace("total_env_steps: 100000", "total_env_steps: 200000"))
    found, grouping = grouped(tmp_path)
    assert "is now trained for longer" in found.runs[0].remarks[0] and grouping.groups[0].runs == []


# -- damage ------------------------------------------------------------------------------------------------------------


def keep(file: Path, share: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])


def add_nan(file: Path) -> None:
    """Changes the first return after training began."""
    head, *lines = file.read_text().splitlines()
    place = next(number for number, line in enumerate(lines) if not line.startswith("0,"))
    step, env_steps, episode, _, length = lines[place].split(",")
    lines[place] = ",".join([step, env_steps, episode, "nan", length])
    file.write_text("\n".join([head, *lines, ""]))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda run: keep(run.eval.path, 0.2), r"eval.csv ends at \d0,000 env steps, result.json says 100,000"),
        (lambda run: keep(run.eval.path, 0.9), r"eval.csv has \d\d of the 100 episodes of the last evaluation"),
        (lambda run: run.eval.path.unlink(), "eval.csv is missing or empty"),
        (lambda run: run.eval.path.write_text("step,env_steps\n1,2,3\n"), "line 2 has 3 cells for 2 columns"),
        (lambda run: run.eval.path.write_text("step,env_steps\n1,2\n"), r"damaged \(KeyError\('return'\)\)"),
        (lambda run: change(run.result, final_return=77.0), "eval.csv is 9.0 on average, result.json says 77.0"),
        (lambda run: change(run.result, final_return=math.nan), "result.json has final_return=nan"),
        (lambda run: keep(run.result, 0.5), r"result.json is damaged: line \d+, column \d+: "),
        (lambda run: run.config.unlink(), "it has no config.yaml"),
        (lambda run: run.config.write_text("a: [1"), "config.yaml is damaged: line 1, column 6: expected ',' or ']'"),
        (lambda run: run.config.write_text("- 1"), "it has no settings"),
        (lambda run: run.config.write_text("seed: 1\nalgo_name: ppo"), "has no total_env_steps, env.backend"),
        (lambda run: run.config.write_text(run.config.read_text().replace("seed: 3", "seed: x")), "has seed='x'"),
        (lambda run: run.manifest.write_text("{"), "manifest.json is damaged"),
        (lambda run: change(run.manifest, git="main"), "it is damaged"),
        (lambda run: run.result.write_text("[1]"), "result.json is damaged: it is no dictionary"),
        (lambda run: change(run.result, env_steps=None), "result.json is damaged: it has env_steps=None"),
        (lambda run: add_nan(run.eval.path), r"eval.csv is damaged: it has nan at \d+,000 env steps"),
        (lambda run: (run.manifest.unlink(), run.config.unlink()), "it has no manifest.json that says which run it is"),
    ],
    ids=range(19),
)
def test_a_damaged_run_is_named_and_left_out(tmp_path: Path, damage, sentence: str):
    for seed in (1, 2, 3):
        write_run(tmp_path / f"runs/mcurl-seed{seed}", "env=Pong", "preset=cpu", seed=seed, final=3.0 * seed)
    damage(RunDirectory(tmp_path / "runs/mcurl-seed3"))
    found, grouping = grouped(tmp_path / "runs")
    said = [why for _, why in found.unreadable] + [remark for run in found.runs for remark in run.remarks]
    assert len(said) == 1 and re.search(sentence, said[0])
    (group,) = grouping.groups
    assert group.seeds == [1, 2] and group.unfinished == []


def test_what_is_left_out_is_at_the_beginning_of_the_page_and_in_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for seed in (1, 2, 3, 4):
        write_run(tmp_path / f"runs/mcurl-seed{seed}", "env=Pong", "preset=cpu", seed=seed, final=3.0 * seed)
    keep(tmp_path / "runs/mcurl-seed3/eval.csv", 0.9)
    (tmp_path / "runs/mcurl-seed4/config.yaml").unlink()
    made = make(tmp_path / "out", tmp_path / "runs")
    assert "4 runs: 2 finished, 1 damaged, 1 unreadable." in made.markdown
    beginning, printed = made.markdown.partition("## Atari")[0], capsys.readouterr().out
    for text in (beginning, printed):
        assert re.search(
            r"Left out: `.*mcurl-seed3`: eval.csv has .* of the 100 episodes of the last evaluation.", text
        )
        assert f"Left out: `{tmp_path}/runs/mcurl-seed4`: it has no config.yaml." in text
    assert made.number(kind="task", quantity="final return") == (pytest.approx(4.5), None, None)


def test_a_torn_line_of_a_run_under_way_is_no_damage(tmp_path: Path):
    run = write_run(tmp_path / "runs/a", "env=Pong", "preset=cpu", evaluations=3, final=10.0)
    keep(run.eval.path, 0.97)  # in the middle of the last evaluation
    (found,) = report_runs.find_runs([tmp_path]).runs
    assert found.status == "unfinished" and found.curve == ((0, 0.0), (20_000, 2.0), (40_000, 4.0))
    assert found.remarks == ()


def test_an_incomplete_evaluation_in_the_middle_is_not_drawn(tmp_path: Path):
    run = write_run(tmp_path / "runs/a", "env=Pong", "preset=cpu")
    lines = run.eval.path.read_text().splitlines(keepends=True)
    run.eval.path.write_text("".join(line for line in lines if not line.startswith("20000,20000,3,")))
    (found,) = report_runs.find_runs([tmp_path]).runs
    assert [steps for steps, _ in found.curve] == [0, 40_000, 60_000, 80_000, 100_000]
    assert "20,000 env steps has 9 of 10 episodes" in found.remarks[0]


# -- suites ------------------------------------------------------------------------------------------------------------

SUITE = f"""
name: two_games
experiments:
  - recipe: rainbow_mcurl
    envs: [RoadRunner, Pong]
    algos: [mcurl, rainbow]
    seeds: [1, 2, 3, 4]
    overrides: [preset=cpu]
declared: {{commit: {COMMIT}, time: 2026-01-01}}
"""


def test_what_is_other_than_the_suite_declares_is_marked(suite: Path, tmp_path: Path):
    shutil.copytree(suite, tmp_path / "runs")
    (tmp_path / "runs/suite.yaml").write_text(SUITE)
    games = tmp_path / "runs/rainbow_mcurl"
    change(games / "Pong/mcurl-seed1/manifest.json", git={"commit": "b" * 40, "dirty": False})
    change(games / "Pong/mcurl-seed2/manifest.json", git={"commit": COMMIT, "dirty": True})
    (games / "Pong/mcurl-seed3/manifest.json").unlink()
    resumed = [{"step": 10, "git": {"commit": code * 40, "dirty": False}} for code in "ac"]
    change(games / "Pong/rainbow-seed1/manifest.json", resumed=resumed)
    write_run(games / "Pong/mcurl-seed9", "env=Pong", "preset=cpu", seed=9)
    write_run(games / "Pong/rainbow-seed4", "env=Pong", "preset=cpu", "algo=rainbow", seed=1, final=99.0)
    found = {
        run.path.name: run.remarks for run in report_runs.find_runs([tmp_path / "runs"]).runs if run.task == "Pong"
    }
    assert found == {
        "mcurl-seed1": ("commit bbbbbbb, not the declared aaaaaaa",),
        "mcurl-seed2": ("its code had changes that were not committed",),
        "mcurl-seed3": ("an unknown commit, not the declared aaaaaaa",),
        "mcurl-seed9": ("not in suite.yaml",),
        "rainbow-seed1": ("commit ccccccc, not the declared aaaaaaa",),
        "rainbow-seed2": (),
        "rainbow-seed3": (),
        "rainbow-seed4": ("it does not match its folder's name: it is rainbow of rainbow_mcurl, seed 1",),
    }
    made = make(tmp_path / "out", tmp_path / "runs")
    assert "commit bbbbbbb, not the declared aaaaaaa" in made.markdown
    assert "3 of the 16 runs of the suite are not there yet: `Pong/mcurl-seed4`" in made.markdown
    assert made.number(kind="task", task="Pong", method="rainbow", quantity="final return")[0] == pytest.approx(-18)


def test_the_suite_is_known_from_any_of_its_folders(suite: Path, tmp_path: Path):
    runs = tmp_path / "runs"
    shutil.copytree(suite, runs)
    (runs / "suite.yaml").write_text(SUITE.replace(COMMIT, "b" * 40))
    (tmp_path / "link").symlink_to(runs)
    inside = [runs / "rainbow_mcurl", runs / "rainbow_mcurl" / "Pong"]
    for folders in (
        [runs],
        [inside[0], runs],
        [inside[1], runs],
        [runs, tmp_path / "link"],
        [inside[0] / ".." / ".." / "runs"],
    ):
        found = report_runs.find_runs(folders)
        assert all(f"commit {COMMIT[:7]}, not the declared bbbbbbb" in run.remarks for run in found.runs), folders
        assert [len(found.not_started(one)) for one in found.suites] == [4] * len(found.suites)
    (alone,) = report_runs.find_runs([inside[1] / "mcurl-seed1"]).runs
    assert alone.remarks and not report_runs.find_runs([inside[1]]).suites  # what else is missing was not asked


def test_runs_from_before_the_declaration_are_marked(tmp_path: Path):
    run = write_run(tmp_path / "rainbow_mcurl/Pong/mcurl-seed1", "env=Pong", "preset=cpu")
    change(run.manifest, time="2025-12-31T23:00:00+00:00")
    text = SUITE.replace("time: 2026-01-01", 'time: "2026-01-01T00:00:00+00:00"')
    (tmp_path / "suite.yaml").write_text(text)
    assert "started before the suite was declared" in report_runs.find_runs([tmp_path]).runs[0].remarks


def test_a_link_to_a_missing_run_is_named(suite: Path, tmp_path: Path):
    (tmp_path / "runs").symlink_to(suite)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn/eval.csv").write_text("")
    found = report_runs.find_runs([tmp_path, tmp_path])
    assert found.problems == [f"{tmp_path}/gone is a link to a folder that is missing."]
    assert [path.name for path, _ in found.unreadable] == ["torn"] and len(found.runs) == 12


def test_variants_of_a_suite_are_methods(tmp_path: Path):
    for name, size in (("size60", 60), ("size84", 84)):
        run = tmp_path / f"rainbow_mcurl/Pong/mcurl-{name}-seed1"
        write_run(run, "env=Pong", "preset=cpu", f"env.image_size={size}")
    more = "overrides: , variants: {size60: [env.image_size=60], size84: }"  # an empty list may be left out
    text = f"experiments: [{{recipe: rainbow_mcurl, envs: [Pong], algos: [mcurl], seeds: [1], {more}}}]"
    (tmp_path / "suite.yaml").write_text(text)
    found, grouping = grouped(tmp_path)
    assert {group.method for group in grouping.groups} == {"mcurl-size60", "mcurl-size84"}
    assert found.not_started(found.suites[0]) == [] and not any(run.remarks for run in found.runs)


@pytest.mark.parametrize("text", ["experiments: [1", "experiments: [{recipe: x}]", "declared: 3", "- a"])
def test_a_damaged_suite_file(tmp_path: Path, text: str):
    write_run(tmp_path / "runs/a", "env=Pong", "preset=cpu")
    (tmp_path / "runs/suite.yaml").write_text(text)
    found, _ = grouped(tmp_path)
    assert "suite.yaml cannot be read" in found.problems[0] and len(found.runs) == 1
    assert "object at" not in found.problems[0] and "\n" not in found.problems[0]


def test_a_link_to_a_missing_suite_file(tmp_path: Path):
    write_run(tmp_path / "runs/a", "env=Pong", "preset=cpu")
    (tmp_path / "runs/suite.yaml").symlink_to("../elsewhere.yaml")
    found, _ = grouped(tmp_path)
    assert "suite.yaml is a link to a file that is missing" in found.problems[0] and len(found.runs) == 1


# -- finding runs ------------------------------------------------------------------------------------------------------


def test_runs_are_found_once_at_any_depth(suite: Path, tmp_path: Path):
    run = suite / "rainbow_mcurl/Pong/mcurl-seed1"
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/one").symlink_to(run)
    (tmp_path / "linked/loop").symlink_to(tmp_path)
    assert len(report_runs.find_runs([tmp_path / "linked"]).runs) == 1
    assert len(report_runs.find_runs([suite, run, tmp_path / "linked"]).runs) == 12


def test_a_run_without_a_manifest_and_an_old_one_without_a_recipe(tmp_path: Path):
    run = write_run(tmp_path / "mcurl", "preset=cpu", recipe="sac_mcurl")
    run.manifest.unlink()
    run.config.write_text(re.sub("^recipe:.*\n", "", run.config.read_text(), flags=re.MULTILINE))
    (found,) = report_runs.find_runs([tmp_path]).runs
    assert (found.recipe, found.commits, found.label) == ("sac_mcurl", (None,), "mcurl")


def test_checkpoints_are_no_runs(tmp_path: Path):
    run = write_run(tmp_path / "a", "env=Pong", "preset=cpu")
    (run.checkpoints / "checkpoint-1").mkdir(parents=True)
    (run.checkpoints / "checkpoint-1/manifest.json").write_text("{}")
    found = report_runs.find_runs([tmp_path])
    assert len(found.runs) == 1 and found.unreadable == []


def test_folders_without_runs(tmp_path: Path):
    (tmp_path / "file").touch()
    for name, sentence in (("", "there is no run below it"), ("file", "it is a file"), ("none", "no such folder")):
        with pytest.raises(BadCommand, match=sentence):
            report_runs.find_runs([tmp_path / name])


# -- the page and the command ------------------------------------------------------------------------------------------


def test_the_page_needs_nothing_else(made: Made):
    assert not re.search(r"<script|https?://|@import|url\(", made.html)
    sources = re.findall(r'(?:src|srcset|href)="([^"]{0,20})', made.html)
    assert sources and all(source.startswith("data:") for source in sources)
    figures = {path.stem for path in (made.out / "figures").glob("*.png")}
    shown = set(re.findall(r"\(figures/([\w-]+)\.png\)", made.markdown))
    assert figures == shown | {f"{name}-dark" for name in shown}
    assert shown == {"atari-1-aggregates", "atari-1-profiles", "atari-improvement", "atari-Pong", "atari-RoadRunner"}
    light, dark = (imread(made.out / f"figures/atari-Pong{variant}.png")[0, 0, :3].mean() for variant in ("", "-dark"))
    assert light > 0.95 and dark < 0.2


def test_the_same_report_every_time(suite: Path, made: Made, tmp_path: Path):
    again = make(tmp_path / "out", suite)
    assert (again.records, again.html) == (made.records, made.html)


def test_the_benchmarks_own_runs(tmp_path: Path):
    made = make(tmp_path / "out", RECIPES.parent / "benchmarks/results")
    assert made.number(kind="run", source=RECIPES.parent / "benchmarks/results/rainbow_roadrunner_100k/mcurl")[0] == 963
    assert "60,000 of 100,000" in made.markdown


def test_runs_that_were_really_trained(tmp_path: Path):
    for seed in (1, 2):
        train(
            tmp_path / f"runs/{seed}",
            *SMALL,
            "env=Pong",
            f"seed={seed}",
            "evaluation.video=false",
            recipe="rainbow_mcurl",
        )
    made = make(tmp_path / "out", tmp_path / "runs")
    results = [json.loads((tmp_path / f"runs/{seed}/result.json").read_text()) for seed in (1, 2)]
    expected = np.mean([result["final_return"] for result in results])
    assert made.number(kind="task", quantity="final return") == (pytest.approx(expected), None, None)
    assert "2 runs: 2 finished." in made.markdown


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_python(RECIPES / "report.py", *arguments, cwd=cwd)


def test_the_command(suite: Path, tmp_path: Path):
    (tmp_path / "algo=mcurl,seed=1").symlink_to(suite)  # as a sweep names its folders
    done = command("runs=algo=mcurl,seed=1", "out=out", "title=The author's games (two), all", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "IQM of the human-normalised score: mcurl 0." in done.stdout and "out/report.html" in done.stdout
    assert "<h1>The author&#x27;s games (two), all</h1>" in (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.html", "report.md", "report.csv", "figures"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "report.py: runs=DIR is needed"),
        (["runs="], "report.py: runs=DIR is needed"),
        (["runs=."], "report.py: runs=.: there is no run below it"),
        (["run=."], "there is no setting 'run'; did you mean runs"),
    ],
)
def test_wrong_commands_end_with_a_sentence(tmp_path: Path, arguments: list[str], sentence: str):
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode == 1 and sentence in done.stderr and "Traceback" not in done.stderr
