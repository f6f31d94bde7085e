"""Functions called on several ranks: real processes, warm like those of warm_start, in one process group of gloo."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.warm_start import LIBRARIES, REPO

SEED = 5
SECONDS = 120  # far more than any message takes: nothing waits for ever


def on_ranks(function: Callable[..., Any], *arguments: Any, count: int = 2, seconds: float = SECONDS) -> list[Any]:
    """Calls ``function(ranks, *arguments)`` in each of several processes; returns what each returned, in their order.

    The function is one of a module. What a process that was killed would have returned is its exit code.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, str(REPO))
        try:
            options = [(Path(folder), index, count, seconds, function, arguments) for index in range(count)]
            processes = [context.Process(target=_call, args=given) for given in options]
            for process in processes:
                process.start()
        finally:
            sys.path.remove(str(REPO))
        for process in processes:
            process.join()
        failed = [file.read_text() for file in sorted(Path(folder).glob("*.txt"))]
        assert not failed, "\n".join(failed)
        files = [Path(folder) / f"{index}.pt" for index in range(count)]
        return [
            torch.load(file, weights_only=False) if file.exists() else process.exitcode
            for file, process in zip(files, processes, strict=True)
        ]


def _call(folder: Path, index: int, count: int, seconds: float, function: Callable[..., Any], arguments: Any) -> None:
    from mcurl_torchrl.ranks import DistributedRanks

    os.environ["LOCAL_RANK"] = str(index)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meeting'}",
        rank=index,
        world_size=count,
        timeout=timedelta(seconds=seconds),
    )
    try:
        made = function(DistributedRanks(seed=SEED), *arguments)
    except Exception:
        (folder / f"{index}.txt").write_text(traceback.format_exc())
        raise
    part = folder / f".{index}.part"
    torch.save(made, part)
    part.rename(folder / f"{index}.pt")
