"""Checkpoints that were changed on purpose, with checksums that fit again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def read_first_line(file: Path) -> dict[str, Any]:
    return json.loads(file.read_bytes().partition(b"\n")[0].split(b" ", 3)[3])


def replace_first_line(file: Path, text: bytes) -> None:
    """Puts a text in the place of a checkpoint's first line."""
    first, _, states = file.read_bytes().partition(b"\n")
    name, version, _, _ = first.split(b" ", 3)
    digest = hashlib.sha256(text).hexdigest().encode()
    file.write_bytes(b" ".join([name, version, digest, text]) + b"\n" + states)


def replace_states(file: Path, content: bytes, *, signed: bool = True) -> None:
    """Puts the same bytes in the place of each state, with or without their checksum."""
    header = read_first_line(file)
    for state in header["states"].values():
        state["size"] = len(content)
        state["sha256"] = hashlib.sha256(content).hexdigest() if signed else state["sha256"]
    file.write_bytes(file.read_bytes().partition(b"\n")[0] + b"\n" + content * len(header["states"]))
    replace_first_line(file, json.dumps(header).encode())
