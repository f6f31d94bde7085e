"""Batches that a buffer has made ahead, as tensors that can be saved, and back."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from tensordict import TensorDict
from torch import Tensor
from torchrl.data import TensorDictReplayBuffer

from mcurl_torchrl.checks import leaf_keys
from mcurl_torchrl.replay.archive import SavedState, decode_key, encode_key

__all__ = ["pack_batches", "unpack_batches"]


def pack_batches(reader: TensorDictReplayBuffer, prefix: str, tensors: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Adds a buffer's prefetched batches to ``tensors``; returns what else it takes to rebuild them."""
    batches = []
    for number, future in enumerate(reader._prefetch_queue):
        data, info = future.result()
        for key in leaf_keys(data):
            tensors[f"{prefix}{number}/data/{encode_key(key)}"] = data.get(key)
        for key, value in info.items():
            for part, tensor in enumerate(value if isinstance(value, tuple) else [value]):
                tensors[f"{prefix}{number}/info/{part}/{encode_key(key)}"] = tensor
        tuples = {encode_key(key): len(value) for key, value in info.items() if isinstance(value, tuple)}
        batches.append({"batch_size": list(data.batch_size), "tuples": tuples})
    return batches


def unpack_batches(saved: SavedState, prefix: str, batches: list[dict[str, Any]], device: Any) -> list[Future[Any]]:
    """Rebuilds the batches that :func:`pack_batches` saved."""
    futures = []
    for number, batch in enumerate(batches):
        values = {decode_key(name): value for name, value in saved.state(f"{prefix}{number}/data/").items()}
        info: dict[Any, Any] = {
            decode_key(name): value for name, value in saved.state(f"{prefix}{number}/info/0/").items()
        }
        for name, length in batch["tuples"].items():
            parts = [saved.tensors[f"{prefix}{number}/info/{part}/{name}"] for part in range(length)]
            info[decode_key(name)] = tuple(parts)
        future: Future[Any] = Future()
        future.set_result((TensorDict(values, batch["batch_size"], device=device), info))
        futures.append(future)
    return futures
