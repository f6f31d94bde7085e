"""The wheel: what is in it, that it works where it is installed, and that installing it leaves torch alone."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.parser import BytesParser
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # mypy brings it

REPO = Path(__file__).resolve().parents[1]
OPTIONAL = (
    "ale_py",
    "dm_control",
    "gymnasium",
    "hydra",
    "imageio_ffmpeg",
    "matplotlib",
    "mlflow",
    "mujoco",
    "tqdm",
    "wandb",
)


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a build reads: no stale build/ can help, and nothing is written into the repository."""
    copy = tmp_path_factory.mktemp("source") / "repo"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPO / name, copy)
    for name in ("mcurl_torchrl", "recipes"):
        shutil.copytree(REPO / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("benchmarks", "examples", "tests"):  # even as packages they must stay out
        (copy / name).mkdir()
        (copy / name / "__init__.py").touch()
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    # No isolation: a fresh build environment would have to download setuptools.
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source, cwd=out)
    (built,) = out.glob("*.whl")
    return built


def make_venv(folder: Path) -> Path:
    """A venv with pip and nothing else; returns its python."""
    venv.create(folder, with_pip=True, symlinks=True)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of a new venv that holds the wheel and borrows the dependencies of the running environment."""
    python = make_venv(tmp_path_factory.mktemp("venv"))
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, cwd=wheel.parent)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=wheel.parent).strip())
    # A path entry only: the .pth files behind it, this repository's editable install among them, are not followed.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python


def imported_from(python: Path, cwd: Path) -> Path:
    # -I: neither the working directory nor PYTHONPATH is searched, only what was installed.
    return Path(run(python, "-I", "-c", "import mcurl_torchrl; print(mcurl_torchrl.__file__)", cwd=cwd).strip())


def test_wheel_holds_the_package_and_the_recipes(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "mcurl_torchrl/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"mcurl_torchrl", "recipes"}
    for folder, pattern in (
        ("mcurl_torchrl", "*.py"),
        ("recipes", "*.py"),
        ("recipes", "*.yaml"),
        ("recipes", "*.csv"),
        ("recipes/policies", "*/*"),
    ):
        files = {str(path.relative_to(REPO)) for path in (REPO / folder).rglob(pattern)}
        files = {name for name in files if "__pycache__" not in name}
        assert files and files <= set(names), "a folder without __init__.py is not packaged"
    sizes = {entry.filename: entry.compress_size for entry in zipfile.ZipFile(wheel).infolist()}
    for policy in (path for path in (REPO / "recipes/policies").iterdir() if path.is_dir()):
        assert sum(size for name, size in sizes.items() if f"recipes/policies/{policy.name}/" in name) < 5e6
    assert sum(size for name, size in sizes.items() if "recipes/policies/" not in name) < 1e6


def test_installed_wheel_imports_from_a_foreign_folder_and_loads_no_simulator(python: Path, tmp_path: Path) -> None:
    # TorchRL looks for mujoco.mjx, which imports an installed mujoco: only what comes on top of TorchRL is ours.
    code = f"""
import sys, torchrl.data, torchrl.envs, torchrl.modules, torchrl.objectives
before = set(sys.modules)
import mcurl_torchrl
print(mcurl_torchrl.__file__)
print(sorted((set(sys.modules) - before) & set({OPTIONAL})))
"""
    file, simulators = run(python, "-I", "-c", code, cwd=tmp_path).splitlines()
    assert Path(file).is_relative_to(python.parents[1])
    assert simulators == "[]"


def test_import_works_without_simulators(python: Path, tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules.update(dict.fromkeys({OPTIONAL}))  # None makes an import fail as if it were not installed
import mcurl_torchrl
"""
    run(python, "-I", "-c", code, cwd=tmp_path)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A user's folder that contains a folder `recipes`, too."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "__init__.py").write_text("raise SystemExit('not these')\n")
    return tmp_path


def test_the_command_answers_from_an_installed_wheel(python: Path, elsewhere: Path) -> None:
    assert "mcurl train sac" in run(python.with_name("mcurl"), "--help", cwd=elsewhere)
    assert "mask_ratio" in run(python.with_name("mcurl"), "train", "rainbow", "--cfg", "job", cwd=elsewhere)
    wrong = [python.with_name("mcurl"), "play", "nothing"]
    assert (
        "choose cartpole-swingup or roadrunner."
        in subprocess.run(wrong, cwd=elsewhere, capture_output=True, text=True).stderr
    )
    assert [path.name for path in elsewhere.iterdir()] == ["recipes"]


@pytest.mark.slow
def test_the_commands_work_from_an_installed_wheel(python: Path, elsewhere: Path) -> None:
    def mcurl(*words: str) -> str:
        return run(python.with_name("mcurl"), *words, cwd=elsewhere)

    small = ["preset=smoke", "logging.tensorboard=false", "threads=1"]
    for agent, env in (("sac", "cartpole-swingup"), ("rainbow", "Pong"), ("ppo", "Pong")):
        mcurl("train", agent, f"env={env}", *small, f"hydra.run.dir=mine/{agent}")
    assert mcurl("runs", "mine").count("finished") == 3
    assert "settings that differ" in mcurl("compare", "mine/rainbow", "mine/ppo")
    mcurl("evaluate", "run=mine/rainbow", "episodes=1", "pack=packed")
    assert "filmed: packed.mp4" in mcurl("play", "packed")
    assert "filmed: roadrunner.mp4" in mcurl("play", "roadrunner")
    seen = ["env.num_frames=3", "env.image_size=36"]
    mcurl("pretrain", "preset=smoke", "hydra.run.dir=encoders")
    few = ["probe.episodes=4", "probe.agent_steps=10"]
    assert "R2" in mcurl("probe", "encoders=encoders/encoder.pt", "env=cartpole-swingup", *few, *seen)
    mcurl("report", "runs=mine", "out=report")
    assert (elsewhere / "report" / "report.html").is_file()
    mcurl("suite", "suite=smoke", "suite.dir=suite", "suite.seeds=[1]", "jobs=1")
    assert "finished" in mcurl("runs", "suite")


@pytest.mark.parametrize("extras", ["", "[recipes]"])
def test_install_keeps_the_torch_that_is_there(source: Path, tmp_path: Path, extras: str) -> None:
    report = tmp_path / "report.json"
    pip_install = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-build-isolation", "--report", report]
    run(*pip_install, "-e", f"{source}{extras}", cwd=tmp_path)
    planned = {item["metadata"]["name"] for item in json.loads(report.read_text(encoding="utf-8"))["install"]}
    assert planned & {"torch", "torchrl", "tensordict"} == set()


@pytest.mark.parametrize("version", ["2.13.0+cpu", "2.13.0+cu130", "2.13.1", "2.15.0+cu132"])
def test_any_build_of_torch_fits(wheel: Path, version: str) -> None:
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    requirements = map(Requirement, BytesParser().parsebytes(archive.read(metadata)).get_all("Requires-Dist"))
    (torch,) = (requirement for requirement in requirements if requirement.name == "torch")
    assert torch.specifier.contains(version)


def constraints() -> list[str]:
    lines = (REPO / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line.replace('"', "'") for line in lines if line and not line.startswith("#")]


def project() -> dict[str, Any]:
    return tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))


def test_uv_has_the_same_constraints() -> None:
    expected = "".join(f'    "{line}",\n' for line in constraints())
    assert project()["tool"]["uv"]["constraint-dependencies"] == constraints(), f"pyproject.toml needs\n{expected}"


def test_constraints_hold_one_version_of_each_package() -> None:
    pins = list(map(Requirement, constraints()))
    for minor in (10, 11, 12, 13):
        python = {"python_version": f"3.{minor}"}
        names = [pin.name.lower() for pin in pins if pin.marker is None or pin.marker.evaluate(python)]
        assert len(names) == len(set(names))


def test_readme_and_package_promise_the_same_pythons() -> None:
    lowest, above = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", project()["project"]["requires-python"]).groups()
    readme = (REPO / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"Python (3\.\d+(?: to 3\.\d+)?)", readme) == [f"3.{lowest} to 3.{int(above) - 1}"]
    assert f"(Python 3.{lowest} to 3.{int(above) - 1}, Linux" in (REPO / "constraints.txt").read_text(encoding="utf-8")


def test_python_3_13_gets_all_of_dm_control_but_labmaze() -> None:
    """There dm_control is installed without its dependencies: dmc names what it asks for."""
    dmc = map(Requirement, project()["project"]["optional-dependencies"]["dmc"])
    python = {"python_version": "3.13"}
    named = {one.name.lower() for one in dmc if one.marker is None or one.marker.evaluate(python)}
    asked = {Requirement(text).name.lower() for text in requires("dm_control") or () if "extra ==" not in text}
    assert asked - named == {"labmaze", "numpy", "setuptools"}  # numpy comes with the package; setuptools is to build


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_clean_install(wheel: Path, tmp_path: Path) -> None:
    python = make_venv(tmp_path / "venv")
    pip_install = [python, "-m", "pip", "install", "--quiet", "-c", REPO / "constraints.txt"]
    run(*pip_install, "torch", cwd=tmp_path)
    run(*pip_install, wheel, cwd=tmp_path)
    assert imported_from(python, tmp_path).is_relative_to(tmp_path / "venv")
    loaded = run(python, "-I", "-c", "import mcurl_torchrl, sys; print(*sys.modules)", cwd=tmp_path).split()
    assert set(loaded) & set(OPTIONAL) == set()
    run(python, "-m", "pip", "check", cwd=tmp_path)
