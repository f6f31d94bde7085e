"""Imports TorchRL, after a check that the import does not end the process; the errors name the cause."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import sys

__all__ = ["check_import_order", "import_torchrl"]


def import_torchrl() -> None:
    """Imports TorchRL's environments, and with them mujoco where it is installed.

    With ``MUJOCO_GL`` set, mujoco loads that OpenGL library when it is imported. If the library is missing, mujoco's
    own error names neither the variable nor the library.

    Raises:
        ImportError: if mujoco cannot be imported with this ``MUJOCO_GL``; it names the choices.

    Examples:
        >>> from mcurl_torchrl.import_order import import_torchrl
        >>> import_torchrl()
    """
    try:
        importlib.import_module("torchrl.envs")
    except (AttributeError, RuntimeError, OSError) as error:
        if (backend := os.environ.get("MUJOCO_GL")) is None or importlib.util.find_spec("mujoco") is None:
            raise
        raise ImportError(
            f"MUJOCO_GL={backend}: mujoco, which TorchRL imports, cannot load this OpenGL ({error}). Leave MUJOCO_GL "
            "unset, and one that works here is chosen; or install it: on Debian and Ubuntu `apt install libosmesa6` "
            "for osmesa, `apt install libegl1 libopengl0 libgl1-mesa-dri` for egl"
        ) from None


def check_import_order() -> None:
    """Raises where the import of TorchRL would end the process with a segmentation fault.

    TorchRL imports triton, where it is installed (CUDA builds of torch bring it), and triton holds an LLVM of its own.
    Mesa, which draws for MuJoCo without a GPU, makes the system's LLVM visible to all libraries that are loaded later,
    and triton's library then calls the functions of the wrong one. In the other order both work.

    Raises:
        ImportError: if triton is installed and not imported yet, and another LLVM is visible already.

    Examples:
        >>> from mcurl_torchrl.import_order import check_import_order
        >>> check_import_order()  # no error: triton is imported already, or not installed
    """
    # Only Linux is concerned: macOS and Windows have no triton.
    if not sys.platform.startswith("linux") or sys.modules.get("triton") is not None:
        return
    if _shows_llvm() and importlib.util.find_spec("triton") is not None:
        raise ImportError(
            "mcurl_torchrl is imported after a renderer (dm_control or mujoco, with Mesa's OpenGL). With triton, which "
            "is installed and comes with CUDA builds of torch, the process would now end with a segmentation fault. "
            "Import torchrl or mcurl_torchrl before dm_control and mujoco"
        )


def _shows_llvm() -> bool:
    """Returns whether libraries that are loaded from now on would find the functions of an LLVM loaded before."""
    return hasattr(ctypes.CDLL(None), "LLVMContextCreate")
