"""Choosing an OpenGL backend, in processes of their own: dm_control keeps the one it was imported with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mcurl_torchrl.envs import gl

REPO = Path(__file__).resolve().parents[2]

# Python imports this at its start: the process cannot load the libraries, as if they were not installed.
WITHOUT_LIBRARIES = """
import ctypes, ctypes.util

load, find = ctypes.CDLL.__init__, ctypes.util.find_library

def refuse(self, name, *args, **kwargs):
    if any(word in str(name) for word in {words}):
        raise OSError(f"{{name}}: cannot open shared object file")
    load(self, name, *args, **kwargs)

ctypes.CDLL.__init__ = refuse
ctypes.util.find_library = lambda name: None if name in {words} else find(name)
"""


def python(code: str, tmp_path: Path, *, missing: tuple[str, ...] = (), **environment: str) -> str:
    """Runs code in a process without a display and without MUJOCO_GL, where some libraries are missing."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_LIBRARIES.format(words=missing))
    hidden = ("MUJOCO_GL", "PYOPENGL_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY")
    inherited = {name: value for name, value in os.environ.items() if name not in hidden}
    paths = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPO)])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=inherited | paths | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


MAKE_PICTURES = """
from mcurl_torchrl.envs import make_dmc_env
{before}
try:
    make_dmc_env("cartpole-swingup", image_size=24)
except RuntimeError as error:
    print(error)
"""


def test_without_any_opengl_states_work_and_pictures_say_what_to_install(tmp_path: Path) -> None:
    states = 'print(make_dmc_env("cartpole-swingup", from_pixels=False).reset()["state"].shape)'
    said = python(MAKE_PICTURES.format(before=states), tmp_path, missing=("EGL", "GL", "OpenGL", "OSMesa", "glfw"))
    assert said.startswith("torch.Size([5])")
    assert "MUJOCO_GL=egl said" in said and "MUJOCO_GL=osmesa said" in said
    assert "eglQueryString" in said and "glGetError" in said  # the last lines of what PyOpenGL had to say
    assert "libegl1 libopengl0 libgl1-mesa-dri" in said and "libosmesa6" in said


# The module by itself: without torch these processes start in a fraction of the time.
LOAD_GL = f"""
import importlib.util, os
spec = importlib.util.spec_from_file_location("gl", {gl.__file__!r})
gl = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gl)
"""


def test_a_driver_that_fails_only_when_it_draws_is_not_chosen(tmp_path: Path) -> None:
    # EGL is there and can be imported, but finds no driver.
    code = (
        LOAD_GL + "try: gl.choose_gl_backend()\nexcept RuntimeError as error: print(error, os.environ.get('MUJOCO_GL'))"
    )
    said = python(code, tmp_path, missing=("OSMesa",), __EGL_VENDOR_LIBRARY_DIRS=str(tmp_path))
    assert "MUJOCO_GL=egl said 'ImportError: Cannot initialize a headless EGL display.'" in said
    assert said.endswith("None\n")


def test_an_import_of_dm_control_without_a_choice_is_made_up_for(tmp_path: Path) -> None:
    code = f"""
import dm_control._render
before = dm_control._render.BACKEND  # GLFW, which cannot draw without a display
{LOAD_GL}
print(gl.choose_gl_backend(), os.environ["MUJOCO_GL"], dm_control._render.BACKEND, before)
{gl.PROBE}
"""
    assert python(code, tmp_path) == "egl egl egl glfw\n"


@pytest.mark.parametrize("backend", [pytest.param("osmesa", marks=pytest.mark.slow), "egl"])
def test_a_backend_that_the_user_chose_is_respected_even_if_it_fails(backend: str, tmp_path: Path) -> None:
    # Set after the import of TorchRL, which imports mujoco, which does not survive a missing OSMesa.
    code = MAKE_PICTURES.format(before=f"import os; os.environ['MUJOCO_GL'] = {backend!r}")
    said = python(code, tmp_path, missing=("OSMesa",), __EGL_VENDOR_LIBRARY_DIRS=str(tmp_path))
    assert f"MUJOCO_GL={backend} said" in said and "libosmesa6" in said


def test_nothing_is_loaded_early_and_pictures_are_drawn_after_states(tmp_path: Path) -> None:
    code = """
import os, sys
from mcurl_torchrl.envs import make_dmc_env
print([name for name in ("dm_control", "dm_env", "gymnasium", "ale_py") if name in sys.modules])
make_dmc_env("cartpole-swingup", from_pixels=False).reset()
print(make_dmc_env("cartpole-swingup", image_size=24).rollout(2)["pixels"].float().std() > 0, os.environ["MUJOCO_GL"])
"""
    assert python(code, tmp_path) == "[]\ntensor(True) egl\n"


@pytest.fixture
def headless(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A process that has not imported dm_control's renderer, on Linux without a display."""
    for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.setenv(name, "")  # so that the end of the test puts back what was there
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delitem(sys.modules, "dm_control._render", raising=False)
    return monkeypatch


def test_osmesa_where_egl_fails_and_only_one_trial(headless: pytest.MonkeyPatch) -> None:
    tried = []
    headless.setattr(gl, "_try_backend", lambda name: tried.append(name) or (None if name == "osmesa" else "broken"))
    assert [gl.choose_gl_backend(), gl.choose_gl_backend()] == ["osmesa", "osmesa"]
    assert tried == ["egl", "osmesa"]
    assert os.environ["MUJOCO_GL"] == "osmesa"


@pytest.mark.parametrize("reason", ["DISPLAY", "WAYLAND_DISPLAY", "macOS"])
def test_the_choice_is_left_to_dm_control_where_there_is_a_display(reason: str, headless: pytest.MonkeyPatch) -> None:
    headless.setattr(gl, "_try_backend", lambda name: pytest.fail("nothing needs to be tried"))
    if reason == "macOS":
        headless.setattr(sys, "platform", "darwin")
    else:
        headless.setenv(reason, ":0")
    assert gl.choose_gl_backend() is None
    assert "MUJOCO_GL" not in os.environ


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os.abort()", "nothing, exit code -6"),
        ("import time; time.sleep(60)", "nothing for 0.5 s"),
        ("raise OSError('no driver')", "OSError: no driver"),
    ],
)
def test_trials_that_crash_hang_or_raise(code: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gl, "PROBE", code)
    monkeypatch.setattr(gl, "PROBE_TIMEOUT", 0.5 if "sleep" in code else 60)
    assert gl._try_backend("egl") == said


def test_a_loaded_renderer_cannot_be_changed_any_more(headless: pytest.MonkeyPatch) -> None:
    headless.setitem(sys.modules, "dm_control._render", type("Loaded", (), {"BACKEND": "osmesa"}))
    headless.setattr(gl, "_try_backend", lambda name: pytest.fail("nothing needs to be tried"))
    assert gl.choose_gl_backend() == "osmesa"
    assert os.environ["MUJOCO_GL"] == "osmesa"
