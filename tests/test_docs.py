"""The documentation site: what its generated pages hold, and that its check of links sees what is wrong.

`make docs` builds it, with every warning as an error; these tests need none of its packages.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

import mcurl_torchrl
from recipes import report, schema
from recipes.suites.definition import read_suite
from tests.recipes.running import settings as compose

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "scripts"))

from docs_site import api, commands, links, pages, results, settings  # noqa: E402

FOLDERS = ["", *sorted(path.parent.name for path in (REPO / "mcurl_torchrl").glob("*/__init__.py"))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    pages.assemble(folder)
    return folder


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_public_name_has_an_entry(folder: str, site: Path) -> None:
    module = importlib.import_module(f"mcurl_torchrl.{folder}".rstrip("."))
    shown = "\n".join(page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.md"))
    entries = set(re.findall(r"^::: (\S+)$", shown, re.MULTILINE))
    listed = {f"mcurl_torchrl.{folder}.{name}" for name in module.__all__} if folder else set()
    assert listed <= entries
    if not folder:
        index = (site / "reference" / "index.md").read_text(encoding="utf-8")
        said = dict(re.findall(r"^\| \[`(\w+)`\]\[\S+\] \| (\S.*) \|$", index, re.MULTILINE))
        assert set(said) == set(module.__all__)


def keys(kind: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The keys of a config with their defaults, at any depth."""
    for key in dataclasses.fields(kind):
        value = key.default
        if value is dataclasses.MISSING:
            value = key.default_factory()
        if dataclasses.is_dataclass(value):
            yield from keys(type(value), f"{prefix}{key.name}.")
        else:
            yield f"{prefix}{key.name}", value


@pytest.mark.parametrize("config", [name for name in vars(schema) if name.endswith("RecipeConfig")])
def test_every_key_is_on_the_page_of_settings(config: str, site: Path) -> None:
    page = (site / "reference" / "settings.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w.]+)` \| `[^`]+` \| (\S.*?) \| .*\|$", page, re.MULTILINE))
    for key, default in keys(getattr(schema, config)):
        assert key in rows
        if isinstance(default, float) and key not in ("total_env_steps", "recipe"):
            assert float(rows[key].strip("`")) == default


def test_every_key_of_an_objective_is_on_the_page_of_settings(site: Path) -> None:
    page = (site / "reference" / "settings.md").read_text(encoding="utf-8")
    for file in (REPO / "recipes" / "conf" / "shared" / "objective").glob("*.yaml"):
        part = page.split(f"### `objective={file.stem}`\n")[1].split("\n###")[0]
        listed = set(re.findall(r"^\| `objective\.(\w+)` ", part, re.MULTILINE))
        assert listed == set(yaml.safe_load(file.read_text(encoding="utf-8"))) - {"defaults", "name", "task"}


def test_every_key_has_a_meaning(site: Path) -> None:
    """The comment beside a key in recipes/schema.py, or in the YAML of an objective, is what the page says of it."""
    page = (site / "reference" / "settings.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([\w.]+)` \|.*\|\s*\|$", page, re.MULTILINE) == []


def test_every_program_is_on_the_page_of_command_lines(site: Path) -> None:
    page = (site / "reference" / "commands.md").read_text(encoding="utf-8")
    programs = {file.name for file in commands.scripts()}
    assert {"sac_mcurl.py", "rainbow_mcurl.py", "evaluate.py", "suite.py", "report.py"} <= programs
    assert set(re.findall(r"^## `(\S+)`$", page, re.MULTILINE)) == programs
    assert all(key.meaning for key in commands.options("suite"))


def test_a_choice_is_shown_with_its_words(tmp_path: Path) -> None:
    file = tmp_path / "schema.py"
    file.write_text(
        'class Config:\n    """What it is."""\n\n'
        '    loss: str = choice("alpha", "log_alpha")  # of the coefficient\n'
        '    backend: str = choice("dmc", "gym", default=MISSING)\n'
        "    # in turn\n"
        "    order: list[str] = field(default_factory=lambda: ['a', 'b'])\n"
        "    clip: float | None = None  # null: none # really\n",
        encoding="utf-8",
    )
    assert settings.sections(file) == {
        "Config": (
            "What it is.",
            [
                settings.Key("loss", "alpha | log_alpha", "alpha", "of the coefficient"),
                settings.Key("backend", "dmc | gym", "(must be set)", ""),
                settings.Key("order", "list[str]", "['a', 'b']", "in turn"),
                settings.Key("clip", "float | None", "null", "null: none # really"),
            ],
        )
    }


def test_links_out_of_docs_lead_to_copies(site: Path) -> None:
    """Each link of each page to a file leads to one that is there: also those to benchmarks/ and to README.md."""
    for page in site.rglob("*.md"):
        text = re.sub(r"(?ms)^ *```.*?^ *```$|`[^`\n]+`", "", page.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)#\s]+)", text):
            if not re.match(r"[a-z]+:", target):
                assert (page.parent / target).is_file(), f"{page.relative_to(site)}: {target}"


def test_pages_that_did_not_change_stay_untouched(tmp_path: Path) -> None:
    pages.assemble(tmp_path)
    (tmp_path / "left_over.md").touch()
    (tmp_path / "replay.md").write_text("changed", encoding="utf-8")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.md")}
    pages.assemble(tmp_path)
    assert not (tmp_path / "left_over.md").exists()
    assert (tmp_path / "replay.md").read_text(encoding="utf-8") != "changed"
    written = {path.name for path in tmp_path.rglob("*.md") if path.stat().st_mtime_ns != before[path]}
    assert written == {"replay.md"}


CONF = REPO / "recipes" / "conf"
OBJECTIVES = {file.stem for file in CONF.glob("shared/objective/*.yaml")} - {"none"}
ALGORITHMS = sorted(OBJECTIVES | {file.stem for file in CONF.glob("*/algo/*.yaml")})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_a_page(name: str) -> None:
    page = (REPO / "docs" / "algorithms" / f"{name}.md").read_text(encoding="utf-8")
    assert page.split("\n")[0].endswith(f": `algo={name}`")
    assert "$$" in page
    parts = ["Settings", "Against the reference implementation", "Results"]
    assert re.findall("^## (.*)$", page, re.MULTILINE) == parts
    last = page.split("## Results\n")[1]
    assert "Published: " in last and "Here: " in last
    assert f"[`{name}`]({name}.md)" in (REPO / "docs" / "algorithms" / "index.md").read_text(encoding="utf-8")


SUITES = sorted(file.stem for file in (REPO / "benchmarks" / "suites").glob("*.yaml"))
WITH_RUNS = [name for name in SUITES if any((results.FOLDER / name).glob("*/*/*/config.yaml"))]


@pytest.mark.parametrize("name", WITH_RUNS)
def test_a_suites_page_has_its_report_and_its_runs(name: str, site: Path) -> None:
    page = (site / "results" / name / "index.md").read_text(encoding="utf-8")
    written = (results.FOLDER / name / results.REPORT).read_text(encoding="utf-8")
    for line in re.findall(r"^(?:\||#{2,}) .*", written, re.MULTILINE):  # its tables and headings
        assert f"\n{line}\n" in page
    figures = re.findall(r"\]\((figures/.+)\.png\)", written)
    assert figures
    for figure in figures:
        assert f"(report/{figure}.png#only-light)" in page and f"(report/{figure}-dark.png#only-dark)" in page
    suite = read_suite(REPO / "benchmarks" / "suites" / f"{name}.yaml", {})
    planned = {run.name: set(run.overrides) for run in suite.runs()}
    for config in (results.FOLDER / name).glob("*/*/*/config.yaml"):
        run = config.parent.relative_to(results.FOLDER / name).as_posix()
        (row,) = re.findall(rf"^\| `{run}` \| (`python .*) \|$", page, re.MULTILINE)
        command, commit, files = row.split(" | ")
        program, script, *given = command.strip("`").split()
        assert (program, script) == ("python", f"recipes/{run.split('/')[0]}.py") and set(given) == planned[run]
        assert "hydra" not in command and re.fullmatch("[0-9a-f]{9}(, [0-9a-f]{9})*", commit)
        assert f"({run}/config.yaml)" in files


@pytest.mark.parametrize("name", WITH_RUNS)
def test_a_suites_report_is_of_the_runs_that_are_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else make it again: with the command that the folder's README.md has."""
    monkeypatch.chdir(REPO)
    page = (results.FOLDER / name / results.PAGE).read_text(encoding="utf-8")
    (command,) = re.findall(r"python recipes/report\.py (.+?)(?:\n\n|\Z)", page, re.DOTALL)
    given = shlex.split(command.replace("\\\n", " "))
    assert f"out=benchmarks/results/{name}/report" in given and f"benchmarks/results/{name}" in command.split("out=")[0]
    report.main(compose(*(word for word in given if not word.startswith("out=")), f"out={tmp_path}", recipe="report"))
    written = (results.FOLDER / name / results.REPORT).read_text(encoding="utf-8")
    same_code = " (with the same code)"  # needs the history of git
    assert written.replace(same_code, "") == (tmp_path / "report.md").read_text(encoding="utf-8").replace(same_code, "")


def test_folders_without_a_report_have_their_runs(site: Path) -> None:
    page = (site / "results" / "first_looks" / "index.md").read_text(encoding="utf-8")
    assert "## The report" not in page
    assert "| `python recipes/sac_mcurl.py env=cartpole-swingup algo=state_sac " in page
    assert results.page_with("benchmarks/results/x/report/report.md") == "benchmarks/results/x/README.md"
    assert results.page_with("docs/report/report.md") == "docs/report/report.md"


def test_code_keeps_what_looks_like_a_link() -> None:
    text = "[a](b.md) `[a](b.md)`\n```\n[a](b.md)\n```\n"
    assert pages.move_links(text, "benchmarks/results/x/README.md").split("\n") == [
        "[a](b.md) `[a](b.md)`", "```", "[a](b.md)", "```", ""
    ]  # fmt: skip
    assert pages.move_links("[a](../b.md#c)", "docs/x.md") == "[a](repository/b.md#c)"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('<a href="two.html">', []),
        ('<a href="two.html#there">', []),
        ('<a href="https://example.org/x">', []),
        ('<a href="three.html">', ["one.html: 'three.html': there is no such file"]),
        ('<a href="two.html#here">', ["one.html: 'two.html#here': there is no such place on the page"]),
        ('<a href="#here">', ["one.html: '#here': there is no such place on the page"]),
        ('<img src="x.png">', ["one.html: 'x.png': there is no such file"]),
        (
            '<script src="https://cdn.example.org/x.js"></script>',
            ["one.html: loads https://cdn.example.org/x.js from elsewhere"],
        ),
        (
            '<link rel="stylesheet" href="//fonts.example.org/x.css">',
            ["one.html: loads //fonts.example.org/x.css from elsewhere"],
        ),
    ],
)
def test_the_check_of_links_sees(body: str, said: list[str], tmp_path: Path) -> None:
    (tmp_path / "one.html").write_text(body, encoding="utf-8")
    (tmp_path / "two.html").write_text('<h1 id="there"></h1>', encoding="utf-8")
    assert links.problems(tmp_path) == said


def test_the_reference_has_the_folders_of_the_package() -> None:
    assert ["", *sorted(api.folders())] == FOLDERS


def test_the_picture_of_the_method_is_small_and_whole() -> None:
    drawn = (REPO / "docs" / "method.svg").read_text(encoding="utf-8")
    root = ElementTree.fromstring(drawn)
    assert len(drawn) < 300_000
    assert drawn.count("data:image/jpeg;base64,") == 6
    assert "http" not in re.sub(r'xmlns="[^"]+"', "", drawn)  # nothing is fetched
    assert root.get("viewBox")


def test_the_citation_has_the_version_of_the_package() -> None:
    citation = yaml.safe_load((REPO / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == mcurl_torchrl.__version__
    assert citation["preferred-citation"]["url"] == "https://arxiv.org/abs/2010.07470"
