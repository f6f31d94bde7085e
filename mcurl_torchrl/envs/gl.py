"""The choice of the OpenGL backend with which MuJoCo renders on a machine without a display."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

__all__ = ["choose_gl_backend", "rendering_error"]

HEADLESS_BACKENDS = ("egl", "osmesa")  # the first one renders on a GPU if there is one
PROBE_TIMEOUT = 60  # seconds; about 0.5 on an idle machine

# It runs in a new process: dm_control keeps its first backend, and a broken driver may end the process.
PROBE = """
from dm_control import mujoco
mujoco.Physics.from_xml_string('<mujoco><worldbody><geom size="1"/></worldbody></mujoco>').render(8, 8)
"""

INSTALL_HINT = (
    "On Debian and Ubuntu, `apt install libegl1 libopengl0 libgl1-mesa-dri` makes EGL work, "
    "`apt install libosmesa6` OSMesa"
)


def choose_gl_backend() -> str | None:
    """Chooses the OpenGL backend that dm_control renders with, before dm_control is imported.

    If ``MUJOCO_GL`` is set, it decides. Otherwise, on Linux without a display, a short process tries to render with EGL
    and then with OSMesa. The first backend that works is put into ``os.environ["MUJOCO_GL"]``: later calls and child
    processes do not try again.

    Returns:
        The name of the backend, or None if there is a display: then dm_control chooses.

    Raises:
        RuntimeError: if nothing renders; it names each backend, its error and the packages to install.

    Examples:
        >>> import os
        >>> from mcurl_torchrl.envs.gl import choose_gl_backend
        >>> backend = choose_gl_backend()
        >>> os.environ.get("MUJOCO_GL") == backend
        True
    """
    loaded = sys.modules.get("dm_control._render")
    if loaded is not None and loaded.BACKEND in HEADLESS_BACKENDS:
        # PyOpenGL is bound to this backend: a process cannot change it.
        return os.environ.setdefault("MUJOCO_GL", loaded.BACKEND)
    if not os.environ.get("MUJOCO_GL") and _is_headless():
        os.environ["MUJOCO_GL"] = _first_that_renders()
    if loaded is not None:
        # dm_control was imported without a choice and took GLFW, which cannot render without a display.
        importlib.reload(loaded)
    return os.environ.get("MUJOCO_GL")


def rendering_error(tried: str) -> RuntimeError:
    """Returns the error to raise when nothing renders; ``tried`` names the backends and their errors."""
    return RuntimeError(f"MuJoCo cannot render here: {tried}. {INSTALL_HINT}; then start Python again")


def _is_headless() -> bool:
    has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return sys.platform.startswith("linux") and not has_display


def _first_that_renders() -> str:
    failures = []
    for backend in HEADLESS_BACKENDS:
        failure = _try_backend(backend)
        if failure is None:
            return backend
        failures.append(f"MUJOCO_GL={backend} said {failure!r}")
    raise rendering_error("; ".join(failures))


def _try_backend(backend: str) -> str | None:
    """Renders 8 x 8 pixels in a new process; returns None if that works, else the last line of its errors."""
    # A renderer of this process may have set PYOPENGL_PLATFORM, which would forbid every other backend.
    environment = {name: value for name, value in os.environ.items() if name != "PYOPENGL_PLATFORM"}
    environment["MUJOCO_GL"] = backend
    command = [sys.executable, "-c", PROBE]
    try:
        probe = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PROBE_TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"nothing for {PROBE_TIMEOUT} s"
    if probe.returncode == 0:
        return None
    lines = probe.stderr.strip().splitlines()
    return lines[-1] if lines else f"nothing, exit code {probe.returncode}"
