"""Files of trained encoders: written by pre-training, read by agents that start from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from mcurl_torchrl.modules.encoders import AtariEncoder, PixelEncoder

__all__ = ["load_encoder", "save_encoder", "start_encoder_from"]

_KINDS = {"AtariEncoder": AtariEncoder, "PixelEncoder": PixelEncoder}


def save_encoder(encoder: PixelEncoder | AtariEncoder, path: str | Path) -> Path:
    """Writes an encoder to a file: its class, its settings and its weights.

    Args:
        encoder (PixelEncoder or AtariEncoder): the encoder.
        path (str or Path): the file.

    Examples:
        >>> import tempfile
        >>> from mcurl_torchrl import PixelEncoder
        >>> from mcurl_torchrl.modules import load_encoder, save_encoder, start_encoder_from
        >>> trained = PixelEncoder(9, 50, num_filters=16)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = save_encoder(trained, f"{folder}/encoder.pt")
        ...     again, other = load_encoder(file), PixelEncoder(9, 50, num_filters=16)
        ...     start_encoder_from(file, other)
        >>> bool((again.linear.weight == trained.linear.weight).all())
        True
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().cpu().contiguous() for name, value in encoder.state_dict().items()}
    torch.save({"kind": type(encoder).__name__, "settings": encoder.settings, "state": state}, path)
    return path


def load_encoder(path: str | Path) -> PixelEncoder | AtariEncoder:
    """Builds an encoder from a file that :func:`save_encoder` wrote, on the CPU. No code from the file is run.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file holds something else.
    """
    content = _read(Path(path))
    encoder: PixelEncoder | AtariEncoder = _KINDS[content["kind"]](**content["settings"])
    encoder.load_state_dict(content["state"])
    return encoder


def start_encoder_from(path: str | Path, encoder: nn.Module, *, frozen: bool = False) -> None:
    """Loads the weights of a file that :func:`save_encoder` wrote into an encoder.

    Args:
        path (str or Path): the file.
        encoder (PixelEncoder or AtariEncoder): the encoder, built with the same settings as the one in the file. Call
            this function before a momentum copy of the encoder is made.

    Keyword Args:
        frozen (bool): whether the weights stay as they are: no gradient reaches them. Defaults to False.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file holds something else, or an encoder of another kind or with other settings.
    """
    content = _read(Path(path))
    kind, settings = type(encoder).__name__, getattr(encoder, "settings", {})
    if content["kind"] != kind:
        raise ValueError(f"{path} holds a {content['kind']}; the agent has a {kind}")
    if differing := sorted(name for name, value in content["settings"].items() if settings.get(name) != value):
        listed = ", ".join(f"{name}={content['settings'][name]}, not {settings.get(name)}" for name in differing)
        raise ValueError(f"{path} holds an encoder with other settings than the agent's: {listed}")
    encoder.load_state_dict(content["state"])
    if frozen:
        encoder.requires_grad_(False)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no encoder file {path}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load has no closed list of errors for a file that it did not write
        raise ValueError(f"{path} is not an encoder file: {str(error).partition(chr(10))[0]}") from None
    if not isinstance(content, dict) or content.get("kind") not in _KINDS or {"settings", "state"} - set(content):
        raise ValueError(f"{path} is not an encoder file; recipes/pretrain.py writes such files")
    return content
