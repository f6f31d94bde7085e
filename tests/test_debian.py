"""scripts/debian.sh on machines where it cannot install packages: a message for each reason, and the exit code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

REPO = Path(__file__).resolve().parents[1]
TOOLS = ("basename", "bash", "cat", "env", "grep", "id", "sed", "setpriv", "uname")  # and no apt-get, no sudo
NOBODY = 65534
GL_PACKAGES = "libegl1 libopengl0 libgl1-mesa-dri"

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the script is for Linux")


@pytest.fixture
def machine() -> Iterator[Path]:
    """A folder that all users may read, with the script, Debian's os-release, this environment and a few tools."""
    with TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copy(REPO / "scripts" / "debian.sh", folder)
        (folder / "os-release").write_text('NAME="Debian GNU/Linux"\nID=debian\n')
        (folder / ".venv").symlink_to(sys.prefix)
        (folder / "tools").mkdir()
        for tool in TOOLS:
            path = shutil.which(tool)
            assert path is not None, tool
            (folder / "tools" / tool).symlink_to(path)
        yield folder


def run(machine: Path, word: str, *, by: tuple[str, ...] = (), **environment: str) -> tuple[int, list[str]]:
    """The exit code of the script and the lines it says, on a machine whose OpenGL finds no driver."""
    everything = {
        "PATH": str(machine / "tools"),
        "PYTHON": "no-such-python",
        "OS_RELEASE": str(machine / "os-release"),
        "__EGL_VENDOR_LIBRARY_DIRS": str(machine),
        "MUJOCO_GL": "egl",
    } | environment
    done = subprocess.run([*by, "bash", "debian.sh", word], cwd=machine, env=everything, capture_output=True, text=True)
    return done.returncode, (done.stdout + done.stderr).splitlines()


def test_without_apt(machine: Path) -> None:
    code, lines = run(machine, "gl")
    assert code == 1
    assert lines == [
        f"Rendering without a display needs Debian's {GL_PACKAGES}, and there is no apt-get here: install them in the "
        "way that this system is made; everything that does not render works without."
    ]


def add_apt(machine: Path, code: str) -> None:
    """An apt-get that must not be called, or one that fails."""
    (machine / "tools" / "apt-get").write_text(f"#!/bin/sh\n{code}\n")
    (machine / "tools" / "apt-get").chmod(0o755)


@pytest.mark.parametrize(
    ("release", "name"),
    [("NAME=Fedora\nID=fedora\n", "Fedora"), ('NAME="Arch Linux"\nID=arch\n', "Arch Linux"), ("", "no Debian")],
)
def test_another_distribution(machine: Path, release: str, name: str) -> None:
    (machine / "os-release").write_text(release)
    add_apt(machine, "echo called")
    code, lines = run(machine, "gl")
    assert code == 1
    assert lines == [
        f"Rendering without a display needs Debian's {GL_PACKAGES}, and this is {name}: install what matches them with "
        "its package manager; everything that does not render works without."
    ]


@pytest.mark.parametrize("word", ["gl", "venv"])
def test_without_root(machine: Path, word: str) -> None:
    add_apt(machine, "echo called")
    # Tests that run as root become nobody, in reality; others are unprivileged already.
    by = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups") if os.getuid() == 0 else ()
    code, lines = run(machine, word, by=by)
    assert code == 1
    packages, otherwise = {
        "gl": (GL_PACKAGES, "; everything that does not render works without."),
        "venv": ("no-such-python-venv", "."),
    }[word]
    (line,) = lines
    assert f"needs Debian's {packages}, and this needs root: run " in line
    assert line.endswith(f"`apt-get update && apt-get install {packages}` as root{otherwise}")


@pytest.mark.skipif(os.getuid() != 0, reason="apt-get is called as root only")
def test_apt_that_fails_is_heard(machine: Path) -> None:
    add_apt(machine, "echo 'E: no network' >&2; exit 100")
    code, lines = run(machine, "venv")
    assert code == 1
    assert lines == [
        "installing Debian's no-such-python-venv",
        "E: no network",
        "Making .venv with no-such-python needs Debian's no-such-python-venv, and apt-get could not install them: see "
        "what it says above.",
    ]


def test_ubuntu_is_a_debian(machine: Path) -> None:
    (machine / "os-release").write_text("NAME=Ubuntu\nID=ubuntu\nID_LIKE=debian\n")
    assert "there is no apt-get here" in run(machine, "gl")[1][0]


def test_nothing_is_said_where_all_is_there(machine: Path) -> None:
    assert run(machine, "venv", PYTHON=sys.executable) == (0, [])


def test_rendering_that_works_is_found(machine: Path) -> None:
    assert run(machine, "gl", __EGL_VENDOR_LIBRARY_DIRS="/usr/share/glvnd/egl_vendor.d") == (0, [])
