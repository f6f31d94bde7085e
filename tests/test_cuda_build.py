"""With PyPI's build of torch, which brings CUDA and triton: what depends on the order of imports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
TESTS = ("tests/test_import_order.py", "tests/test_examples.py", "tests/envs/test_gl.py", "tests/envs/test_dmc.py")


@pytest.mark.slow
@pytest.mark.timeout(7200)  # several gigabytes are downloaded
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PyPI has builds with triton for Linux only")
def test_import_order_and_examples_with_the_build_of_pypi(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(REPO, clone, ignore=shutil.ignore_patterns(".venv", ".git", "*.egg-info", "__pycache__", "runs"))
    # A clean environment: neither this repository nor the running one is found in it.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["PYTHON"] = sys.executable
    subprocess.run(["make", "setup", "TORCH=pypi"], cwd=clone, env=environment, check=True)
    python = clone / ".venv" / "bin" / "python"
    try:
        subprocess.run([python, "-c", "import triton, torch; assert torch.version.cuda"], check=True)
        subprocess.run([python, "-m", "pytest", "-q", *TESTS], cwd=clone, env=environment, check=True)
    finally:
        shutil.rmtree(clone / ".venv")  # pytest keeps the last three folders
