"""scripts/make_venv.py: its choice of the torch build, with a real pip and small indexes on disk, and its messages."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

REPO = Path(__file__).resolve().parents[1]
VERSION = "2.13.0"
NOWHERE = "file:///no/such/index"


def write_wheel(folder: Path, version: str) -> None:
    """A wheel with the name of torch and nothing in it."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"torch-{version}.dist-info"
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def write_index(folder: Path, *versions: str) -> str:
    """A package index with builds of torch; returns its address."""
    for version in versions:
        write_wheel(folder / "torch", version)
    links = "".join(f'<a href="{path.name}">{path.name}</a>' for path in (folder / "torch").glob("*.whl"))
    (folder / "torch" / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    return folder.as_uri()


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The script in a repository of its own, whose .venv it has made."""
    repo = tmp_path_factory.mktemp("repo")
    (repo / "scripts").mkdir()
    for name in ("scripts/make_venv.py", "constraints.txt", "pyproject.toml", "Makefile"):
        shutil.copy(REPO / name, repo / name)
    spec = importlib.util.spec_from_file_location("make_venv", repo / "scripts" / "make_venv.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.make_environment()
    return module


@pytest.fixture
def script(module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script on a Linux machine without an NVIDIA driver, whose pip knows an index like PyPI and nothing else."""
    if module.installed_torch():
        subprocess.run(module.pip("uninstall", "-y", "torch"), check=True, capture_output=True)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", write_index(tmp_path / "pypi", VERSION, "2.14.1"))
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(module, "NVIDIA_DRIVER", ())
    monkeypatch.setattr(sys, "platform", "linux")
    return module


def install(script: ModuleType, wanted: str, cpu_index: str = NOWHERE) -> tuple[str, str]:
    """Installs what the script chooses; returns its version, and why it was chosen."""
    torch = script.choose_torch(wanted, VERSION, cpu_index)
    if torch.requirement is not None:
        script.pip_install(*torch.options, torch.requirement)
    return script.installed_torch(), torch.reason


@pytest.mark.parametrize("wanted", ["", "cpu"])
def test_a_cpu_build_of_an_index(script: ModuleType, tmp_path: Path, wanted: str) -> None:
    index = write_index(tmp_path / "cpu", "2.13.0+cpu", "2.14.1+cpu")
    assert install(script, wanted, index) == ("2.13.0+cpu", f"torch 2.13.0+cpu from {index}")


@pytest.mark.parametrize("wanted", ["", "cpu"])
def test_a_cpu_build_of_pips_own_sources_wins(
    script: ModuleType, tmp_path: Path, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path / "wheels", "2.13.0+cpu")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    index = write_index(tmp_path / "cpu", "2.13.0+cpu")
    assert install(script, wanted, index) == ("2.13.0+cpu", "torch 2.13.0+cpu, which pip's own sources offer")


def test_another_build_of_pips_own_sources_wins_unless_cpu_is_asked_for(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path / "wheels", "2.13.0+rocm7")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    index = write_index(tmp_path / "cpu", "2.13.0+cpu")
    assert install(script, "", index)[0] == "2.13.0+rocm7"
    assert install(script, "cpu", index)[0] == "2.13.0+cpu"


@pytest.mark.parametrize("index", [NOWHERE, "https://cpu.invalid/whl"])
def test_pypi_where_no_cpu_build_can_be_had(script: ModuleType, index: str) -> None:
    version, reason = install(script, "", index)
    assert version == VERSION
    assert reason.startswith("torch 2.13.0 as PyPI has it, with CUDA (2.7 GB to download")
    assert f"no CPU build of torch 2.13.0 for this Python at {index}" in reason


def test_cpu_that_is_asked_for_and_cannot_be_had(script: ModuleType) -> None:
    with pytest.raises(SystemExit, match="TORCH=cpu: no CPU build of torch 2.13.0 .* TORCH=pypi"):
        script.choose_torch("cpu", VERSION, NOWHERE)


@pytest.mark.parametrize("sign", ["nvidia-smi", "driver"])
def test_an_nvidia_driver_wants_cuda(
    script: ModuleType, sign: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bin" / sign
    file.touch(mode=0o755)
    if sign == "driver":
        monkeypatch.setattr(script, "NVIDIA_DRIVER", (str(file),))
    index = write_index(tmp_path / "cpu", "2.13.0+cpu")
    assert install(script, "", index) == (VERSION, "torch 2.13.0 with CUDA, because there is an NVIDIA driver")
    assert install(script, "cpu", index)[0] == "2.13.0+cpu"


def test_on_a_mac_pypi_has_the_cpu_build(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert script.choose_torch("", VERSION, NOWHERE) == ("torch==2.13.0", (), "torch 2.13.0 as PyPI has it")


def test_an_installed_torch_stays_until_another_is_asked_for(script: ModuleType, tmp_path: Path) -> None:
    index = write_index(tmp_path / "own", "2.13.0+cu126")
    assert install(script, index)[0] == "2.13.0+cu126"
    assert script.choose_torch("", VERSION, NOWHERE) == (None, (), "torch 2.13.0+cu126 is installed and stays")
    assert install(script, "pypi")[0] == VERSION
    assert install(script, "")[0] == VERSION
    write_wheel(tmp_path / "wheels", "2.13.0+mine")
    assert install(script, str(tmp_path / "wheels"))[0] == "2.13.0+mine"
    assert script.choose_torch("", "2.14.1", NOWHERE).requirement == "torch==2.14.1", "the tested version has moved on"


def test_pypi_wins_over_pips_own_sources_where_it_is_asked_for(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path / "wheels", "2.13.0+cpu")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    assert install(script, "pypi")[0] == VERSION


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("gpu", "TORCH=gpu: choose cpu, pypi, the address of an index"),
        (NOWHERE, f"TORCH={NOWHERE}: there is no torch 2.13.0 for this Python"),
    ],
)
def test_what_cannot_be_is_named(script: ModuleType, wanted: str, said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        script.choose_torch(wanted, VERSION, NOWHERE)


def test_signs_of_life(script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(script, "SIGN_OF_LIFE", 0)
    script.pip_install(f"torch=={VERSION}")
    said = capsys.readouterr().out
    assert "  Installing collected packages: torch\n" in said
    assert re.search(r"(?m)^  \.\.\. \d+ s, \.venv has 0\.0 GB$", said)


def test_all_that_pip_said_where_it_fails(script: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"(?s)No matching distribution found for tea.*pip .*install.* failed"):
        script.pip_install("tea")


def test_python_is_checked_before_anything_is_made(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    script.check_python()
    for version in ((3, 9, 1), (3, 14, 0)):
        monkeypatch.setattr(sys, "version_info", version)
        with pytest.raises(SystemExit, match=r"mcurl_torchrl works with 3.10 to 3.13: .*make setup PYTHON=python3.13"):
            script.check_python()


def test_an_environment_of_another_python_is_made_anew(module: ModuleType) -> None:
    mark = module.ENVIRONMENT / "mark"
    mark.touch()
    module.make_environment()
    assert mark.exists()
    (module.ENVIRONMENT / "lib" / "python3.1").mkdir()
    module.make_environment()
    assert not mark.exists() and module.PYTHON.exists()


@pytest.mark.parametrize(
    ("words", "installs"),
    [
        (["setup"], False),
        (["setup", "TORCH=cpu"], True),
        (["setup", "PYTHON=python3.12"], True),
        (["lint", "TORCH=cpu"], False),
    ],
)
def test_make_goes_again_for_what_is_named(
    module: ModuleType, words: list[str], installs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MAKEFLAGS", "MAKEOVERRIDES"):  # what the make above these tests was given
        monkeypatch.delenv(name, raising=False)
    (module.ENVIRONMENT / ".stamp").touch()
    plan = subprocess.run(["make", "--dry-run", *words], cwd=module.REPO, check=True, capture_output=True, text=True)
    assert ("scripts/make_venv.py" in plan.stdout) == installs
