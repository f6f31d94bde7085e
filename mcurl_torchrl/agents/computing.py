"""Computing: how an agent computes its losses, eagerly or compiled, in float32 or in mixed precision."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase

from mcurl_torchrl.checks import check_choice

__all__ = ["PRECISIONS", "Computing"]

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}

Loss = Callable[[TensorDictBase], TensorDictBase]


class Computing:
    """Calls losses: compiled by ``torch.compile`` if asked for, under autocast for another precision than float32.

    An agent with ``agent.computing = Computing(...)`` computes all its losses through it. The forward and the backward
    pass of a loss are compiled; optimizers (one fused kernel each), momentum copies and metrics are not. Random numbers
    are those of eager mode, so that results differ by rounding only.

    Parameters, their gradients and the optimizers' states are float32 in every precision. Values, probabilities, logits
    and the losses themselves are float32, too: autocast rounds only the outputs of the layers before them.

    Args:
        device (torch.device): the device of the networks.

    Keyword Args:
        compile (bool): Defaults to False.
        precision (str): ``"float32"`` or ``"bfloat16"``. Defaults to ``"float32"``.
        cuda_graphs (bool): whether compiled losses run as CUDA graphs; needs ``compile`` and a GPU. Defaults to False.
        backend (str): the backend of ``torch.compile``. Defaults to ``"inductor"``, which needs a C++ compiler.

    Raises:
        ValueError: on an unknown precision, if there is no C++ compiler, and on CUDA graphs without ``compile`` or
            without a GPU.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from mcurl_torchrl.agents import Computing
        >>> layer = torch.nn.Linear(4, 2)
        >>> def loss(batch):
        ...     return TensorDict({"loss": layer(batch["x"]).float().square().mean(), "seen": layer(batch["x"])})
        >>> out = Computing(torch.device("cpu"), precision="bfloat16")(loss, TensorDict({"x": torch.rand(3, 4)}, [3]))
        >>> out["seen"].dtype, layer.weight.dtype
        (torch.bfloat16, torch.float32)
    """

    def __init__(
        self,
        device: torch.device,
        *,
        compile: bool = False,
        precision: str = "float32",
        cuda_graphs: bool = False,
        backend: str = "inductor",
    ) -> None:
        if precision == "float16":
            raise ValueError(
                "precision='float16'; its small gradients become 0 without loss scaling, which is not implemented: "
                "choose 'bfloat16', which has the range of float32, or 'float32'"
            )
        self.device = device
        self.dtype = PRECISIONS[check_choice("precision", precision, tuple(PRECISIONS))]
        self.compile = compile
        self.cuda_graphs = cuda_graphs
        self.backend = backend
        if cuda_graphs and not (compile and device.type == "cuda"):
            raise ValueError(f"cuda_graphs=True needs compile=True and a GPU; got compile={compile}, device={device}")
        if compile and backend == "inductor":
            _check_compiler()
        self._compiled: dict[Loss, Loss] = {}

    def __call__(self, loss: Loss, data: TensorDictBase) -> TensorDictBase:
        """Computes a loss: a module, or a method of one, whose only argument is ``data``."""
        with self.autocast():
            out = (self._compiled_form(loss) if self.compile else loss)(data)
        # The next run of a CUDA graph overwrites the outputs of the last one; metrics are read later.
        return out.clone() if self.cuda_graphs else out

    def autocast(self) -> torch.autocast:
        """Returns the autocast context of the precision; for float32 it does nothing."""
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32)

    def _compiled_form(self, loss: Loss) -> Loss:
        if loss not in self._compiled:
            # dynamic=False compiles for each shape: code for dynamic shapes rounds differently, and a resumed run meets
            # the shapes in another order.
            options: dict[str, Any] = {}
            if self.backend == "inductor":
                options = {"options": {"fallback_random": True, "triton.cudagraphs": self.cuda_graphs}}
            self._compiled[loss] = torch.compile(loss, backend=self.backend, dynamic=False, **options)
        return self._compiled[loss]


def _check_compiler() -> None:
    named = os.environ.get("CXX")
    if not any(shutil.which(name) for name in ([named] if named else ["g++", "clang++", "c++"])):
        missing = f"CXX={named} was not found" if named else "neither g++ nor clang++ was found"
        raise ValueError(f"compile=True needs a C++ compiler, and {missing}; install one, or leave compile out")
