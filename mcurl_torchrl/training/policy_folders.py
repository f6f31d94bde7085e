"""Folders to share a trained policy: its weights as safetensors, and its description as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from mcurl_torchrl.files import write_file
from mcurl_torchrl.training.checkpoints import CheckpointNotRestored

if TYPE_CHECKING:
    from mcurl_torchrl.training.policies import FramePolicy

__all__ = ["is_policy_folder", "read_policy_folder", "round_weights", "save_policy"]

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"  # as on the Hugging Face hub
_FORMAT = 1


def save_policy(
    policy: FramePolicy, folder: str | Path, *, about: Mapping[str, Any] | None = None, half: bool = False
) -> Path:
    """Writes a policy to a folder that :func:`~mcurl_torchrl.load_policy` reads.

    The files are ``model.safetensors`` and ``config.json``, as the Hugging Face hub names them. Weights that only
    training needs, such as the scales of noisy layers, are left out.

    Args:
        policy (FramePolicy): a policy from :func:`~mcurl_torchrl.load_policy`.
        folder (str or Path): the folder; it is made.

    Keyword Args:
        about (mapping, optional): further entries of ``config.json``, such as the environment and the score.
        half (bool): whether weights are stored as float16, which takes half of the space. They are float32 again once
            loaded, but rounded: evaluate a policy after :func:`round_weights`. Defaults to False.

    Raises:
        ValueError: if ``about`` has an entry that the file has already.

    Examples:
        >>> import tempfile
        >>> import torch
        >>> from mcurl_torchrl import load_policy
        >>> from mcurl_torchrl.modules import RainbowPolicy
        >>> from mcurl_torchrl.training import FramePolicy, save_policy
        >>> trained = FramePolicy(RainbowPolicy([4, 84, 84], 6), num_frames=4, padding="zeros").eval()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     policy = load_policy(save_policy(trained, folder, about={"env": {"game": "Pong"}}))
        >>> frame = torch.zeros(84, 84, dtype=torch.uint8)
        >>> bool(policy(frame) == trained(frame))
        True
    """
    folder, network = Path(folder), policy.network.for_acting()
    config = {"library": "mcurl_torchrl", "format": _FORMAT, "policy": policy.describe(network)}
    if taken := sorted(set(config) & set(about or {})):
        raise ValueError(f"about={taken}: {_CONFIG} has these entries already")
    state = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
    if half:
        state |= {name: state[name].half() for name, _ in network.named_parameters()}
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / _WEIGHTS, safetensors.torch.save(state, {"format": "pt"}))
    write_file(folder / _CONFIG, (json.dumps({**config, **(about or {})}, indent=2) + "\n").encode())
    return folder


def round_weights(network: nn.Module) -> None:
    """Rounds the weights to float16, as ``save_policy(half=True)`` does; they stay float32."""
    with torch.no_grad():
        for weights in network.parameters():
            weights.copy_(weights.half())


def is_policy_folder(folder: Path) -> bool:
    """Returns whether a folder holds the files that :func:`save_policy` writes."""
    return (folder / _CONFIG).is_file() and (folder / _WEIGHTS).is_file()


def read_policy_folder(folder: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Reads ``config.json`` and the weights of a folder from :func:`save_policy`. No code from the files is run.

    Raises:
        FileNotFoundError: if one of them is missing.
        CheckpointNotRestored: if one of them is damaged, or of a later format.
    """
    folder = Path(folder)
    try:
        config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
        state = safetensors.torch.load((folder / _WEIGHTS).read_bytes())
    except (ValueError, SafetensorError) as error:
        raise CheckpointNotRestored(f"{folder} holds a damaged policy: {error}") from None
    if not isinstance(config, dict) or not isinstance(config.get("policy"), dict):
        raise CheckpointNotRestored(f"{folder / _CONFIG} describes no policy")
    if (found := config.get("format")) != _FORMAT:
        raise CheckpointNotRestored(f"{folder / _CONFIG} has the format {found!r}; this release reads {_FORMAT}")
    return config, state
