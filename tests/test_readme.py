"""What README.md and docs/ show must work: Python blocks run, and shell blocks name targets and files that exist.

A page is read from top to bottom in one folder, which shows the folders of the repository: blocks build on those above
them, and the shell blocks behind `<!-- run -->` are run as well.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
PAGES = [REPO / "README.md", *sorted((REPO / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"(?P<run>^ *<!-- run -->\n)?^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^(?P=indent)```",
    re.DOTALL | re.MULTILINE,
)
SHELLS = {"bash", "sh", "shell", "console"}
SHOWN_FOLDERS = ("benchmarks", "examples", "recipes")

page_param = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))


def blocks(page: Path, languages: set[str], *, marked: bool = False) -> list[tuple[int, str, str]]:
    """Each block's language and code with the number of lines above it, so that a traceback points into the page.

    With ``marked``, shell blocks are those behind `<!-- run -->`.
    """
    text = page.read_text(encoding="utf-8")
    return [
        (
            text.count("\n", 0, match.start("code")),
            match["language"],
            re.sub(rf"(?m)^{match['indent']}", "", match["code"]),
        )
        for match in FENCE.finditer(text)
        if match["language"] in languages and (match["run"] or match["language"] not in SHELLS or not marked)
    ]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (REPO / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def commands(page: Path) -> list[list[str]]:
    """The words of each command, without prompt, comment and leading environment variables."""
    lines = []
    for _, _, code in blocks(page, SHELLS):
        lines += re.sub(r"\\\n", " ", code).splitlines()
    found = []
    for line in lines:
        for command in re.split(r"&&|\|\||[;|]", re.sub(r"(^|\s)#.*", "", line)):
            words = command.removeprefix("$ ").split()
            while words and re.fullmatch(r"\w+=\S*", words[0]):
                words.pop(0)
            found += [words] if words else []
    return found


@page_param
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for folder in SHOWN_FOLDERS:
        (tmp_path / folder).symlink_to(REPO / folder)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for lines_above, language, code in blocks(page, {"python", *SHELLS}, marked=True):
        if language in SHELLS:
            done = subprocess.run(["bash", "-euc", code], capture_output=True, text=True)
            assert done.returncode == 0, f"{page}:{lines_above + 1}\n{code}\n{done.stdout}\n{done.stderr}"
        elif not re.match(r"# \S+\.py\n", code):  # a whole file: tests/recipes/test_extending.py writes and runs it
            exec(compile("\n" * lines_above + code, str(page), "exec"), namespace)


@page_param
def test_make_words_are_targets(page: Path) -> None:
    words = {word for command in commands(page) if command[0] == "make" for word in command[1:]}
    targets = {word for word in words if re.fullmatch(r"[a-z][\w-]*", word)}
    assert targets <= make_targets()


@page_param
def test_scripts_exist(page: Path) -> None:
    scripts = {
        word
        for command in commands(page)
        if re.fullmatch(r"(\S*/)?python[\d.]*", command[0])
        for word in command[1:]
        if word.endswith(".py")
    }
    assert {script for script in scripts if not (REPO / script).is_file()} == set()
