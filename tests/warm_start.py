"""Processes that start warm: forked from one that has imported the libraries, which would take seconds in each.

Only libraries of others are imported before the fork: what is ours, a forked process imports anew from where it is told
to. Where the start itself is tested (the order of imports, sitecustomize, the interpreter), use subprocess.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
REPO_TESTS = __name__.partition(".")[0]
LIBRARIES = ["torch", "torchrl.data", "torchrl.envs", "torchrl.modules", "torchrl.objectives", "safetensors.torch"]
LIBRARIES += ["gymnasium", "hydra", "matplotlib.pyplot", "scipy.stats", "tqdm"]


def run_python(
    *words: str | Path, cwd: Path, environment: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    """Runs ``python SCRIPT ...``, ``python -m MODULE ...`` or ``python -c CODE ...``; returns how it ended."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)  # counts where the server does not run yet
    arguments = [str(word) for word in words]
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / name for name in ("stdout", "stderr")]
        process = context.Process(target=_become, args=(arguments, str(cwd), dict(environment), outputs))
        sys.path.insert(0, str(REPO))  # the new process gets it, and so finds this module
        try:
            process.start()
        finally:
            sys.path.remove(str(REPO))
        process.join()
        said = [path.read_text() if path.exists() else "" for path in outputs]
        return subprocess.CompletedProcess([sys.executable, *arguments], process.exitcode, *said)


def _become(arguments: list[str], cwd: str, environment: dict[str, str], outputs: list[Path]) -> None:
    """Turns this process into the one that was asked for."""
    for number, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    option = arguments.pop(0) if arguments[0] in ("-m", "-c") else None
    first = {"-m": cwd, "-c": "", None: str(Path(arguments[0]).resolve().parent)}[option]
    installed = [path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix))]
    sys.path[:] = [first, *paths, *installed]
    for name in [name for name in sys.modules if name.partition(".")[0] == REPO_TESTS]:
        del sys.modules[name]  # the folder that is asked for may have tests of its own
    sys.argv[:] = ["-c", *arguments[1:]] if option == "-c" else arguments
    try:
        if option == "-m":
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        elif option == "-c":
            exec(arguments[0], {"__name__": "__main__"})
        else:
            runpy.run_path(arguments[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves them out
