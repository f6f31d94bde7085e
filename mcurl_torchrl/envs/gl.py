"""Which OpenGL backend MuJoCo renders with on a machine without a display."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

__all__ = ["choose_gl_backend", "rendering_error"]

HEADLESS_BACKENDS = ("egl", "osmesa")  # the first renders on a GPU where there is one
PROBE_TIMEOUT = 60  # seconds; about 0.5 on an idle machine

# In a process of its own: dm_control keeps the backend it was imported with, and a broken driver may end its process.
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

    ``MUJOCO_GL`` is respected where it is set. Otherwise, on Linux without a display, EGL and then OSMesa are tried by
    rendering in a short process, and the first that works is put into ``os.environ["MUJOCO_GL"]``: later calls and
    child processes do not try again.

    Returns:
        The name of the backend, or None where the choice is left to dm_control (there is a display).

    Raises:
        RuntimeError: if nothing renders; it says what was tried, what each said and which packages to install.

    Examples:
        >>> import os
        >>> from mcurl_torchrl.envs.gl import choose_gl_backend
        >>> backend = choose_gl_backend()
        >>> os.environ.get("MUJOCO_GL") == backend
        True
    """
    loaded = sys.modules.get("dm_control._render")
    if loaded is not None and loaded.BACKEND in HEADLESS_BACKENDS:
        # PyOpenGL is bound to it: it cannot be changed in this process any more.
        return os.environ.setdefault("MUJOCO_GL", loaded.BACKEND)
    if not os.environ.get("MUJOCO_GL") and _is_headless():
        os.environ["MUJOCO_GL"] = _first_that_renders()
    if loaded is not None:
        # Imported without a choice, dm_control takes GLFW even where there is no display, and then cannot render.
        importlib.reload(loaded)
    return os.environ.get("MUJOCO_GL")


def rendering_error(tried: str) -> RuntimeError:
    """Returns the error to raise when nothing renders; ``tried`` says what was tried and what it said."""
    return RuntimeError(f"MuJoCo cannot render here: {tried}. {INSTALL_HINT}; then start Python anew")


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
    """Renders 8 x 8 pixels in a new process; returns None if that works, else the last line it said."""
    # PYOPENGL_PLATFORM, where a renderer of this process has set it, would forbid every other backend.
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
