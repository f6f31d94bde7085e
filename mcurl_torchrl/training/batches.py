"""Batches: the data of each update, drawn when it is needed, or by a thread during the updates before."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from mcurl_torchrl.checks import check_count
from mcurl_torchrl.objectives import AuxiliaryTask
from mcurl_torchrl.replay import FrameReplayBuffer, copy_to
from mcurl_torchrl.training.seeds import derive_seed
from mcurl_torchrl.transforms.random_transform import RandomTransform

__all__ = ["Batches"]

Drawn = tuple[TensorDictBase, TensorDictBase]


class Batches:
    """Draws the batch of RL and the views of the auxiliary task for each update, optionally some updates ahead.

    With ``ahead=N`` a thread draws for update k while update k - N is computed. The order is fixed: the thread sees the
    steps that were written before update k - N, and the priorities (and the ``beta`` of their weights) that were set
    before it. The data of the first N updates is drawn before the first update. The thread runs inside :meth:`drawing`
    only: nothing is drawn while the buffer is written or saved.

    With ``ahead``, all random numbers of sampling come from one separate generator, which is part of the state: they do
    not depend on when the thread runs. With ``ahead=0`` the buffer and the transforms keep their generators, by default
    torch's global one.

    Args:
        buffer (FrameReplayBuffer): the replay.
        task (AuxiliaryTask): the task, whose ``sample`` must not read networks: updates change them at the same time.

    Keyword Args:
        device (torch.device): the device for the batch of RL.
        rl_reads (bool): whether RL learns from the batch; PPO does not. If neither RL nor the task reads the batch, it
            is not drawn: it is an empty tensordict. Defaults to True.
        ahead (int): N. One is enough to hide the time of sampling behind that of an update. Defaults to 0: no thread.
        seed (int): of the generator. Defaults to 0.

    Raises:
        RuntimeError: from :meth:`next`, if with ``ahead`` something is drawn from torch's global generator.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage
        >>> from mcurl_torchrl import FrameReplayBuffer
        >>> from mcurl_torchrl.objectives import NoTask
        >>> from mcurl_torchrl.training import Batches
        >>> buffer = FrameReplayBuffer(storage=LazyTensorStorage(100), batch_size=8)
        >>> flags = {name: torch.zeros(20, 1, dtype=torch.bool) for name in ("terminated", "truncated")}
        >>> pixels = torch.randint(256, (21, 3, 8, 8), dtype=torch.uint8)
        >>> following = {"pixels": pixels[1:], "reward": torch.ones(20, 1), **flags}
        >>> _ = buffer.extend(TensorDict({"pixels": pixels[:-1], "action": torch.rand(20, 2), "next": following}, [20]))
        >>> batches = Batches(buffer, NoTask(), device=torch.device("cpu"), ahead=1)
        >>> for _ in range(3):
        ...     batch, views = batches.next()
        ...     with batches.drawing():
        ...         pass  # an update; meanwhile the next batch is drawn
    """

    def __init__(
        self,
        buffer: FrameReplayBuffer,
        task: AuxiliaryTask,
        *,
        device: torch.device,
        rl_reads: bool = True,
        ahead: int = 0,
        seed: int = 0,
    ) -> None:
        self.buffer = buffer
        self.task = task
        self.device = device
        self.is_read = rl_reads or task.reads_batch
        self.ahead = check_count("ahead", ahead, least=0)
        self._drawn: deque[Drawn] = deque()
        self.generator = torch.Generator().manual_seed(derive_seed(seed, "sampling"))
        if ahead:
            self._use_generator()

    def next(self) -> Drawn:
        """Returns the batch and the views of the next update, in the order in which they were drawn."""
        while len(self._drawn) < max(1, self.ahead):
            self._drawn.append(self._draw_checked() if self.ahead else self._draw())
        return self._drawn.popleft()

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Draws for a later update while the block runs, if ``ahead`` is above 0; ends when both are done.

        Raises:
            Exception: the error of the draw, if the block raised none.
        """
        if not self.ahead:
            yield
            return
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="sample_ahead") as pool:
            future = pool.submit(self._draw)
            yield
        self._drawn.append(future.result())

    def _draw(self) -> Drawn:
        batch = copy_to(self.buffer.sample(), self.device) if self.is_read else TensorDict()
        return batch, self.task.sample(batch)

    def _draw_checked(self) -> Drawn:
        """Draws without a thread, and checks that no number comes from torch's global generator, which updates use."""
        before = torch.get_rng_state()
        drawn = self._draw()
        if not torch.equal(before, torch.get_rng_state()):
            raise RuntimeError(
                f"sampling ahead needs all its random numbers from one generator, and {type(self.task).__name__} or a "
                "transform draws from torch's global one: results would depend on the time; draw by a RandomTransform "
                "with its generator, or do not sample ahead"
            )
        return drawn

    def _use_generator(self) -> None:
        """Lets the buffer, its views, the task and all their transforms draw from the generator."""
        for reader in self.buffer.readers:
            reader.set_rng(self.generator)
        for source in (self.task, *(reader.transform for reader in self.buffer.readers)):
            for module in source.modules():
                if isinstance(module, RandomTransform):
                    module.generator = self.generator

    # -- saving --------------------------------------------------------------------------------------------------------

    def components(self) -> dict[str, Batches]:
        """Returns the object whose state a resumed run needs: none without ``ahead``."""
        return {"batches": self} if self.ahead else {}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the generator, and the batches that are drawn and not used yet."""
        drawn = [
            (_packed(batch), None if views is batch else _packed(views))  # some tasks take their views from the batch
            for batch, views in self._drawn
        ]
        return {"generator": self.generator.get_state(), "drawn": drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a saved state."""
        self.generator.set_state(state["generator"])
        self._drawn.clear()
        for packed, packed_views in state["drawn"]:
            batch = self._unpacked(packed)
            self._drawn.append((batch, batch if packed_views is None else self._unpacked(packed_views)))

    def _unpacked(self, packed: tuple[dict[Any, Any], list[int]]) -> TensorDictBase:
        values, size = packed
        return copy_to(TensorDict(values, size, device="cpu"), self.device)


def _packed(data: TensorDictBase) -> tuple[dict[Any, Any], list[int]]:
    return data.to("cpu").to_dict(), list(data.batch_size)
