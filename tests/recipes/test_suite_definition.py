"""What a suite's YAML may say, in which order its runs come, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from recipes import sac_mcurl
from recipes import suite as script
from recipes.command_line import BadCommand
from recipes.suites.definition import find_suite, read_suite, suite_names
from tests.envs.games import ATARI_100K_GAMES
from tests.recipes.running import RECIPES, settings

BENCHMARKS = sorted((RECIPES.parent / "benchmarks" / "suites").glob("*.yaml"))
SMALL = """
experiments:
  - recipe: sac_mcurl
    envs: [cartpole-swingup, cheetah-run]
    algos: [mcurl, sac]
    seeds: [1, 2]
    overrides: [preset=smoke]
"""


def read(folder: Path, text: str, **changes):
    (folder / "small.yaml").write_text(text)
    return read_suite(folder / "small.yaml", changes)


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        pytest.param("atari26", 26 * 4 * 5, marks=pytest.mark.slow),  # each game and task has a test of its own
        pytest.param("dmc16", 16 * 4 * 5, marks=pytest.mark.slow),
        ("dmc6", 6 * 4 * 5),
        ("cpu_small", 48),
        ("smoke", 4),
    ],
)
def test_the_suites_that_are_there(name: str, runs: int):
    suite = read_suite(find_suite(name), {})
    assert len(suite.runs()) == runs
    assert suite.folder == Path(f"runs/suites/{name}").absolute()
    assert {*suite_names()} == {"atari26", "dmc16", "dmc6", "cpu_small", "smoke"}


def test_atari26_has_all_games():
    assert {*OmegaConf.load(find_suite("atari26")).experiments[0].envs} == {*ATARI_100K_GAMES}


@pytest.mark.parametrize("file", BENCHMARKS, ids=lambda file: file.stem)
def test_the_suites_of_the_benchmarks(file: Path):
    suite = read_suite(find_suite(str(file)), {})
    assert suite.declared is not None and len(suite.declared["commit"]) == 40


def test_a_seed_is_a_whole_comparison(tmp_path: Path):
    names = [run.name for run in read(tmp_path, SMALL).runs()]
    assert names == [
        f"sac_mcurl/{env}/{algo}-seed{seed}"
        for seed in (1, 2)
        for env in ("cartpole-swingup", "cheetah-run")
        for algo in ("mcurl", "sac")
    ]


def test_variants_have_a_name_and_settings(tmp_path: Path):
    variants = "    variants: {plain: [], wide: [sac.hidden_dim=64]}\n"
    plain, wide, *_ = read(tmp_path, SMALL + variants).runs()
    assert (plain.label, wide.label) == ("mcurl-plain", "mcurl-wide")
    assert wide.overrides == (
        *("env=cartpole-swingup", "algo=mcurl", "seed=1", "preset=smoke", "sac.hidden_dim=64", "threads=1"),
    )
    assert (plain.settings()["sac"]["hidden_dim"], wide.settings()["sac"]["hidden_dim"]) == (32, 64)


def test_a_recipe_needs_no_function_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(sac_mcurl, "check")
    assert len(read(tmp_path, SMALL).runs()) == 8


def test_settings_are_those_of_the_recipe(tmp_path: Path):
    run = read(tmp_path, SMALL).runs()[-1]
    cfg = settings(*run.overrides)
    assert run.settings()["seed"] == cfg.seed == 2
    assert run.settings()["env"] == cfg.env and run.settings()["algo_name"] == cfg.algo_name == "sac"


def test_threads_of_ones_own(tmp_path: Path):
    run = read(tmp_path, SMALL.replace("preset=smoke", "threads=2")).runs()[0]
    assert run.settings()["threads"] == 2 and "threads=1" not in run.overrides


def test_the_command_line_changes_all_experiments(tmp_path: Path):
    runs = read(tmp_path, SMALL, seeds=[5], algos=["rad"]).runs()
    assert [run.name for run in runs] == [f"sac_mcurl/{env}/rad-seed5" for env in ("cartpole-swingup", "cheetah-run")]


def test_where_it_goes(tmp_path: Path):
    assert read(tmp_path, f"dir: {tmp_path}/there\n{SMALL}").folder == tmp_path / "there"
    assert read_suite(tmp_path / "small.yaml", {}, f"{tmp_path}/here").folder == tmp_path / "here"


@pytest.mark.parametrize(
    ("old", "new", "answers"),
    [
        (SMALL, "", ["the suite is empty"]),
        (SMALL, "[1, 2]", ["not a suite", "a list of experiments"]),
        (SMALL, "experiments: []", ["the suite is empty"]),
        ("experiments", "experiment", ["'experiment'", "did you mean experiments"]),
        ("seeds", "sedes", ["experiments[0]", "'sedes'", "did you mean seeds"]),
        ("    seeds: [1, 2]\n", "", ["experiments[0] has no seeds"]),
        ("[1, 2]", "[1, 1]", ["experiments[0].seeds has 1 twice"]),
        ("[1, 2]", "3", ["experiments[0].seeds=3", "list of whole numbers"]),
        ("[1, 2]", "[]", ["experiments[0].seeds=[]"]),
        ("[1, 2]", "[-1]", ["seed=-1", "at least 0"]),
        ("[1, 2]", "[one]", ["experiments[0].seeds", "list of whole numbers"]),
        ("[mcurl, sac]", "[mcurl, mcurl]", ["experiments[0].algos has mcurl twice"]),
        ("[mcurl, sac]", "[mcrul]", ["algo=mcrul", "did you mean mcurl"]),
        ("cheetah-run", "cheeta-run", ["env=cheeta-run", "did you mean cheetah-run"]),
        ("recipe: sac_mcurl", "recipe: sac_mcrl", ["recipe=sac_mcrl", "did you mean sac_mcurl"]),
        ("preset=smoke", "preset=smok", ["preset=smok", "did you mean smoke"]),
        ("preset=smoke", "sac.hiden_dim=3", ["'sac.hiden_dim'", "did you mean sac.hidden_dim"]),
        ("preset=smoke", "total_env_steps=many", ["total_env_steps", "many"]),
        ("preset=smoke", "total_env_steps=0", ["total_env_steps=0"]),
        ("preset=smoke", "encoder.init=missing.pt", ["encoder.init=missing.pt: there is no encoder file"]),
        ("preset=smoke", "encoder.frozen=true", ["algo=mcurl", "encoder.frozen=true with objective=mcurl"]),
        ("preset=smoke", "sac.random_agent_steps=70000", ["sac.random_agent_steps=70000", "there would be no update"]),
        ("preset=smoke", "collector.num_workers=2", ["collector.num_workers=2 needs collector.backend"]),
        ("preset=smoke", "seed=3", ["seed=3: the suite sets seed itself"]),
        ("preset=smoke", '"sac.hidden_dim=3,4"', ["several values", "variants"]),
        ("preset=smoke", "preset", ["preset"]),
        ("    overrides", "    variants: {a b: []}\n    overrides", ["variants", "letters"]),
        ("experiments:", "declared: {commit: abc}\nexperiments:", ["declared", "a commit and a time"]),
        (
            "[1, 2]",
            "[1, 2",
            ["small.yaml cannot be read: line 7, column 14: expected ',' or ']', but got ':' (in the part that begins"],
        ),
        (
            "    seeds: [1, 2]",
            "    seeds: [1]\n    seeds: [2]",
            ["cannot be read: line 7, column 5: found duplicate key seeds (in the part that begins in line 3)"],
        ),
        (
            SMALL,
            SMALL + SMALL.replace("experiments:\n", ""),
            ["experiments[1] repeats sac_mcurl/cartpole-swingup/mcurl-seed1"],
        ),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, answers: list[str], tmp_path: Path):
    with pytest.raises(BadCommand) as raised:
        read(tmp_path, SMALL.replace(old, new))
    assert all(answer in str(raised.value) for answer in [*answers, "small.yaml"]), raised.value


def test_whole_numbers_may_be_written_with_an_exponent(tmp_path: Path):
    suite = read(tmp_path, SMALL.replace("preset=smoke", "total_env_steps=1e4"))
    assert {run.settings()["total_env_steps"] for run in suite.runs()} == {10_000}


def test_every_combination_is_checked(tmp_path: Path):
    # Too short for an action repeat of 8, not for one of 4.
    short = SMALL.replace("preset=smoke", "total_env_steps=5, sac.random_agent_steps=1")
    with pytest.raises(BadCommand, match="env=cartpole-swingup algo=mcurl .* it must be at least 8"):
        read(tmp_path, short, envs=["cheetah-run", "cartpole-swingup"])


@pytest.mark.parametrize(
    ("arguments", "answers"),
    [
        ([], ["suite=NAME", "smoke"]),
        (["suite=smok"], ["suite=smok", "did you mean smoke", "YAML"]),
        (["suite=no/such.yaml"], ["no/such.yaml", "no such file"]),
        (["suite=smoke", "job=2"], ["job=2", "did you mean jobs"]),
        (["suite=smoke", "suite.seed=[1]"], ["suite.seeds"]),
        (
            ["suite=smoke", "suite.seeds=[1"],
            ["suite.seeds=[1 cannot be read: line 1, column 3: expected ',' or ']', but got the end"],
        ),
        (["suite=smoke", "suite.seeds=3"], ["seeds=3", "list of whole numbers"]),
        (["suite=smoke", "jobs=0"], ["jobs=0", "at least 1"]),
        (["suite=smoke", "jobs=two"], ["jobs=two", "a whole number"]),
        (["suite=smoke", "nice=20"], ["nice=20", "between 0 and 19"]),
        (["suite=smoke", "retries=-1"], ["retries=-1", "at least 0"]),
        (["suite=smoke", "dry_run=maybe"], ["dry_run=maybe", "true or false"]),
        (["suite=smoke", "jobs"], ["jobs: there is no such option"]),
    ],
    ids=" ".join,
)
def test_a_wrong_command(arguments: list[str], answers: list[str]):
    with pytest.raises(BadCommand) as raised:
        script.main(arguments)
    assert all(answer in str(raised.value) for answer in answers), raised.value


def test_help_names_the_suites(capsys: pytest.CaptureFixture):
    assert script.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert "atari26, cpu_small, dmc16, dmc6, smoke" in said and "nice=0" in said and "suite.seeds" in said
