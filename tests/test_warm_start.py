"""A process forked from a warm process (see warm_start.py) behaves like a new process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm_start import run_python

SCRIPT = """
import atexit, os, signal, sys
import ours
atexit.register(lambda: print("at the end", flush=True))
print(__name__, sys.argv, os.getcwd(), sys.path[0], os.environ["WORD"], ours.__file__, flush=True)
{end}
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "sys.exit('in words')", "raise ValueError('lost')", KILL])
@pytest.mark.parametrize("option", [None, "-m", "-c"])
def test_it_is_like_a_process_of_its_own(end: str, option: str | None, tmp_path: Path) -> None:
    for folder in ("scripts", "modules", "here"):
        (tmp_path / folder).mkdir()
    (tmp_path / "modules" / "ours.py").touch()
    script = tmp_path / "here" / "script.py" if option == "-m" else tmp_path / "scripts" / "script.py"
    script.write_text(SCRIPT.format(end=end))
    words = {None: ["../scripts/script.py"], "-m": ["-m", "script"], "-c": ["-c", SCRIPT.format(end=end)]}[option]
    environment = os.environ | {"WORD": "word", "PYTHONPATH": str(tmp_path / "modules")}
    here = tmp_path / "here"
    warm = run_python(*words, "a", "b=c", cwd=here, environment=environment)
    command = [sys.executable, *words, "a", "b=c"]
    expected = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True)
    assert (warm.returncode, warm.stdout) == (expected.returncode, expected.stdout)
    assert warm.stderr.splitlines()[-1:] == expected.stderr.splitlines()[-1:]
