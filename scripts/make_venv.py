"""Creates .venv with a build of torch that fits this machine, and the package with the versions of constraints.txt.

    python3 scripts/make_venv.py

The build of torch is the first of these that is available: an installed torch of the tested version; a build from your
own pip index or folder; with an NVIDIA driver, the CUDA build; PyTorch's CPU build; PyPI's build. Two environment
variables change the choice:

    TORCH            cpu, pypi, the address of an index, or a folder of wheels
    TORCH_CPU_INDEX  the index of CPU builds; PyTorch's index by default
"""

from __future__ import annotations

import os
import platform
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
import venv
from pathlib import Path
from textwrap import shorten
from typing import IO, NamedTuple

REPO = Path(__file__).resolve().parents[1]
ENVIRONMENT = REPO / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
CONSTRAINTS = REPO / "constraints.txt"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
TIMEOUT = 5  # seconds to wait for an index
SIGN_OF_LIFE = 20  # seconds without output after which the progress is printed
SHOWN = ("Downloading", "Building", "Installing", "ERROR", "error")  # lines of pip to show; all are shown if it fails
NVIDIA_DRIVER = ("/proc/driver/nvidia/version", "/usr/lib/wsl/lib/libcuda.so.1")  # Linux, and Linux inside of Windows


class Torch(NamedTuple):
    """Which torch to install, with which options of pip, and why."""

    requirement: str | None  # None: the installed one stays
    options: tuple[str, ...]
    reason: str


def main() -> None:
    """Checks the version of Python, creates the environment and installs the packages."""
    check_python()
    make_environment()
    torch = choose_torch(os.environ.get("TORCH", ""), pinned("torch"), os.environ.get("TORCH_CPU_INDEX") or CPU_INDEX)
    print(torch.reason, flush=True)
    if torch.requirement is not None:
        pip_install(*torch.options, torch.requirement)
    # Debian's pip needs wheel: otherwise it installs Hydra's antlr4, a source package, in a deprecated way.
    pip_install("wheel")
    print("the package, and all that recipes and tests need", flush=True)
    pip_install("-e", f"{REPO}[recipes,dev]")
    if sys.version_info >= (3, 13):
        # dm_control depends on labmaze, which cannot be installed on Python 3.13; the Control Suite does not use it.
        pip_install("--no-deps", f"dm_control=={pinned('dm_control')}")


def check_python() -> None:
    """Ends with an error message if the package does not support this version of Python."""
    text = (REPO / "pyproject.toml").read_text(encoding="utf-8")
    lowest, above = re.search(r'^requires-python = ">=3\.(\d+),<3\.(\d+)"$', text, re.MULTILINE).groups()
    if not (3, int(lowest)) <= sys.version_info[:2] < (3, int(above)):
        sys.exit(
            f"{sys.executable} is Python {platform.python_version()}; mcurl_torchrl works with 3.{lowest} to "
            f"3.{int(above) - 1}: choose another one, for example `make setup PYTHON=python3.{int(above) - 1}`."
        )


def make_environment() -> None:
    """Creates the environment, or keeps an existing one if it has the same version of Python."""
    version = "python{}.{}".format(*sys.version_info[:2])
    others = [path.name for path in ENVIRONMENT.glob("lib/python3*") if path.name != version]
    print(f".venv with Python {platform.python_version()}", flush=True)
    venv.create(ENVIRONMENT, with_pip=True, symlinks=True, clear=bool(others))


def choose_torch(wanted: str, version: str, cpu_index: str) -> Torch:
    """Returns the build of torch to install: the wanted build, or one that fits this machine."""
    installed = installed_torch()
    if wanted == "pypi":  # the one build without a label such as +cpu; === does not take those with one
        return Torch(f"torch==={version}", (), f"torch {version} as PyPI has it, because of TORCH=pypi")
    if wanted not in ("", "cpu"):
        return torch_of(wanted, version)
    if not wanted and public(installed) == version:
        return Torch(None, (), f"torch {installed} is installed and stays")
    labelled = [build for build in builds() if public(build) == version != build]
    if not wanted and labelled:
        return Torch(f"torch=={labelled[0]}", (), f"torch {labelled[0]}, which pip's own sources offer")
    if not sys.platform.startswith("linux"):
        return Torch(f"torch=={version}", (), f"torch {version} as PyPI has it")  # there PyPI's is a CPU build
    if not wanted and has_nvidia_driver():
        return Torch(f"torch=={version}", (), f"torch {version} with CUDA, because there is an NVIDIA driver")
    return cpu_build(wanted, version, labelled, cpu_index)


def cpu_build(wanted: str, version: str, labelled: list[str], cpu_index: str) -> Torch:
    """Returns the CPU build of pip's own sources or of an index; PyPI's build if there is none and TORCH is not set."""
    cpu = f"{version}+cpu"
    if cpu in labelled:
        return Torch(f"torch=={cpu}", (), f"torch {cpu}, which pip's own sources offer")
    if cpu in builds("--index-url", cpu_index):
        # Only torch comes from this index; pip finds all other packages in its own sources.
        return Torch(f"torch=={cpu}", ("--no-deps", "--index-url", cpu_index), f"torch {cpu} from {cpu_index}")
    missing = f"no CPU build of torch {version} for this Python at {cpu_index} (it may be out of reach)"
    if wanted:
        sys.exit(f"TORCH=cpu: {missing}; set TORCH_CPU_INDEX to another index, or TORCH=pypi.")
    return Torch(
        f"torch=={version}",
        (),
        f"torch {version} as PyPI has it, with CUDA (2.7 GB to download, 4.5 GB on disk; it runs without a GPU), "
        f"because there is {missing}",
    )


def torch_of(index: str, version: str) -> Torch:
    """The build in an index or a folder of the user's own."""
    if "://" in index:
        options = ("--index-url", index)
    elif Path(index).is_dir():
        options = ("--no-index", "--find-links", index)
    else:
        sys.exit(f"TORCH={index}: choose cpu, pypi, the address of an index (https://...) or a folder of wheels.")
    found = [build for build in builds(*options) if public(build) == version]
    if not found:
        sys.exit(f"TORCH={index}: there is no torch {version} for this Python, or the index is out of reach.")
    return Torch(f"torch=={found[0]}", ("--no-deps", *options), f"torch {found[0]} from {index}")


def builds(*options: str) -> list[str]:
    """The versions of torch that pip finds, such as 2.13.0+cpu, newest first; none if no index answers in time."""
    limits = ["--timeout", str(TIMEOUT), "--retries", "0"] if options else []
    done = subprocess.run(pip("index", "versions", "torch", *limits, *options), capture_output=True, text=True)
    found = re.search(r"^Available versions: (.+)$", done.stdout, re.MULTILINE)
    return found[1].split(", ") if found else []


def installed_torch() -> str:
    """The version in the environment, with its label; empty if there is none."""
    code = "import importlib.metadata as m\ntry: print(m.version('torch'))\nexcept m.PackageNotFoundError: pass"
    return subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def public(version: str) -> str:
    """A version without its label: 2.13.0 of 2.13.0+cpu."""
    return version.partition("+")[0]


def pinned(package: str) -> str:
    """The version of a package in constraints.txt."""
    return re.search(rf"^{package}==([^\s;]+)", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE)[1]


def has_nvidia_driver() -> bool:
    """Whether CUDA could work here."""
    return shutil.which("nvidia-smi") is not None or any(map(os.path.exists, NVIDIA_DRIVER))


def pip(*arguments: str) -> list[str]:
    """The command of the environment's pip."""
    return [str(PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments]


def pip_install(*arguments: str) -> None:
    """Installs packages with the constraints and shows the progress; ends with the whole output of pip if it fails."""
    command = pip("install", "--progress-bar", "off", "-c", str(CONSTRAINTS), *arguments)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=put_lines, args=(process.stdout, lines)).start()
    start = shown = time.monotonic()
    said = []
    while True:
        try:
            line = lines.get(timeout=max(0.0, shown + SIGN_OF_LIFE - time.monotonic()))
        except queue.Empty:
            shown = time.monotonic()
            print(f"  ... {shown - start:.0f} s, .venv has {gigabytes(ENVIRONMENT):.1f} GB", flush=True)
            continue
        if line is None:
            break
        said.append(line)
        if line.lstrip().startswith(SHOWN):
            shown = time.monotonic()
            print(f"  {shorten(line.strip(), 120)}", flush=True)
    if process.wait() != 0:
        sys.exit(f"{''.join(said)}\n{' '.join(command)} failed: see above.")


def put_lines(stream: IO[str], lines: queue.SimpleQueue[str | None]) -> None:
    """Moves lines from a stream to a queue, whose get() has a timeout; None marks the end."""
    for line in stream:
        lines.put(line)
    lines.put(None)


def gigabytes(folder: Path) -> float:
    """The size of all files in a folder."""
    files = (os.path.join(path, name) for path, _, names in os.walk(folder) for name in names)
    return sum(os.lstat(file).st_size for file in files if os.path.lexists(file)) / 1e9


if __name__ == "__main__":
    main()
