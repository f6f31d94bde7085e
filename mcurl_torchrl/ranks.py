"""Ranks: processes that learn together, each from its share of every batch (data-parallel learning).

The contract: every rank computes the loss of its share so that the *mean over the ranks* is the loss of the whole
batch, and gradients are averaged over the ranks (:meth:`Ranks.average_gradients`). So all ranks take the steps that one
process on the whole batch would take, up to rounding.

``DistributedDataParallel`` is not used: it averages the gradients of one module with one ``forward``, while an agent
here has several losses and optimizers on shared networks, and calls some networks through parts of a loss module.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from mcurl_torchrl.scalars import stack_scalars

__all__ = ["ALONE", "DistributedRanks", "RankLost", "Ranks", "RanksDiffer", "join_ranks", "sendable"]

T = TypeVar("T")
Work = Callable[[Callable[[], None]], T]

_WAIT = timedelta(minutes=30)  # ranks wait for each other, also while the first one evaluates an episode, or saves


class RankLost(RuntimeError):
    """Another rank ended, or did not answer in time: this one cannot go on."""


class RanksDiffer(RuntimeError):
    """The networks of the ranks are no longer equal; the message names the difference and where it is."""


class Ranks:
    """One process that learns alone: the interface of :class:`DistributedRanks`, for a single rank.

    It is the default of all ``ranks`` arguments. Its methods send nothing and change nothing.

    Attributes:
        index (int): the number of this rank.
        count (int): the number of ranks.
        local_index (int): the number of this rank on its machine.
        leads (bool): whether this is the first rank, which steps environments, evaluates, logs and saves.
        generator (torch.Generator, optional): gives the same numbers on every rank. None for a single rank: torch's
            global generator is used.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.ranks import ALONE
        >>> ALONE.count, ALONE.gather(torch.ones(2)), ALONE.share_of("batch_size", 6)
        (1, tensor([1., 1.]), slice(0, 6, None))
    """

    index: int = 0
    count: int = 1
    local_index: int = 0
    generator: torch.Generator | None = None

    @property
    def leads(self) -> bool:
        """Whether this is the first rank."""
        return self.index == 0

    def share_of(self, name: str, size: int) -> slice:
        """Returns the slice of ``size`` items that belongs to this rank.

        Raises:
            ValueError: if the items cannot be shared in equal parts; it names the size and the number of ranks.
        """
        if size % self.count:
            raise ValueError(
                f"{name}={size} cannot be shared by {self.count} ranks in equal parts; it must be a multiple of "
                f"{self.count}"
            )
        each = size // self.count
        return slice(self.index * each, (self.index + 1) * each)

    def gather(self, tensor: Tensor) -> Tensor:
        """Concatenates the tensors ``[n, ...]`` of all ranks to ``[count * n, ...]``, with gradients to all of them."""
        return tensor

    def sum(self, tensor: Tensor) -> Tensor:
        """Returns the sum over the ranks of a tensor without gradients."""
        return tensor

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replaces gradients by their mean over the ranks, in one message."""

    def average(self, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the mean over the ranks of scalar tensors, without gradients, in one message."""
        return dict(numbers)

    def highest(self, number: int) -> int:
        """Returns the largest of the ranks' numbers."""
        return number

    def collect(self, value: T) -> list[T]:
        """Returns the values of all ranks, in their order."""
        return [value]

    def on_first(self, work: Work[T]) -> T:
        """Calls ``work`` on the first rank while the others wait; all ranks return its result, or raise its error.

        Args:
            work (callable): called on the first rank with one argument, a function to call from time to time during
                long work: the other ranks wait for a limited time only.
        """
        return work(lambda: None)

    def same_draws(self) -> contextlib.AbstractContextManager[None]:
        """Makes all ranks draw the same numbers from torch's global generators inside the block."""
        return contextlib.nullcontext()

    def meet(self) -> None:
        """Waits until all ranks have called this method."""
        self.highest(0)

    def leave(self) -> None:
        """Leaves the group; ranks that wait for this one get a :class:`RankLost`."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranks:
        return self  # a copy of a loss uses the same ranks


ALONE = Ranks()


class DistributedRanks(Ranks):
    """The ranks of a process group of ``torch.distributed``.

    All ranks must call the same methods in the same order. A call raises :class:`RankLost` where another rank has
    ended, or does not answer within the timeout of the group.

    Keyword Args:
        group (ProcessGroup, optional): the group. Defaults to None: all processes.
        seed (int): of ``generator``, the same on all ranks. Defaults to 0.

    Raises:
        RuntimeError: if ``torch.distributed.init_process_group`` was not called.

    Examples:
        >>> # in a program of your own that torchrun starts, after dist.init_process_group("gloo"):
        >>> # loss = MaskedContrastiveLoss(encoder, context, ranks=DistributedRanks())
        >>> # the mean of loss over the ranks, and of its gradients, is that of one process on all ranks' data
        >>> from mcurl_torchrl.ranks import DistributedRanks
    """

    def __init__(self, *, group: dist.ProcessGroup | None = None, seed: int = 0) -> None:
        if not dist.is_initialized():
            raise RuntimeError("there is no process group: call torch.distributed.init_process_group first")
        self.group = group
        self.index, self.count = dist.get_rank(group), dist.get_world_size(group)
        self.local_index = int(os.environ.get("LOCAL_RANK", self.index))
        self.generator = torch.Generator().manual_seed(seed)

    # -- tensors -------------------------------------------------------------------------------------------------------

    def gather(self, tensor: Tensor) -> Tensor:
        """Concatenates the tensors of all ranks."""
        return _Gather.apply(tensor, self)

    def sum(self, tensor: Tensor) -> Tensor:
        """Returns the sum over the ranks."""
        total = tensor.detach().clone()
        self._all_reduce(total)
        return total

    @torch.no_grad()
    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replaces gradients by their mean over the ranks."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not gradients:
            return
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        self._all_reduce(flat)
        flat /= self.count
        for gradient, mean in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(mean.view(gradient.shape))

    def average(self, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the means over the ranks."""
        if not numbers:
            return {}
        flat = stack_scalars(number.to(torch.float64) for number in numbers.values())
        self._all_reduce(flat)
        means = (flat / self.count).unbind()
        return {name: mean.to(number.dtype) for (name, number), mean in zip(numbers.items(), means, strict=True)}

    def highest(self, number: int) -> int:
        """Returns the largest of the ranks' numbers."""
        found = torch.tensor(number)
        self._all_reduce(found, dist.ReduceOp.MAX)
        return int(found)

    def _all_reduce(self, tensor: Tensor, operation: Any = dist.ReduceOp.SUM) -> None:
        with _answered():
            dist.all_reduce(tensor, operation, group=self.group)

    # -- objects -------------------------------------------------------------------------------------------------------

    def collect(self, value: T) -> list[T]:
        """Returns the values of all ranks."""
        values: list[Any] = [None] * self.count
        with _answered():
            dist.all_gather_object(values, value, group=self.group)
        return values

    def on_first(self, work: Work[T]) -> T:
        """Calls ``work`` on the first rank while the others wait."""
        if not self.leads:
            return self._follow()
        try:
            done = work(lambda: self._tell(("working", None)))
        except RankLost:
            raise
        except Exception as error:
            self._tell(("raised", sendable(error)))
            raise
        self._tell(("returned", done))
        return done

    def _follow(self) -> Any:
        """Waits for the first rank's work; returns its result, or raises its error."""
        content: Any
        status, content = "working", None
        while status == "working":
            status, content = self._tell(None)
        if status == "raised":
            raise content
        return content

    def _tell(self, message: Any) -> Any:
        """Sends the first rank's message to all ranks; returns this message on every rank."""
        box = [message]
        with _answered():
            dist.broadcast_object_list(box, group=self.group, group_src=0, device=torch.device("cpu"))
        return box[0]

    # -- random numbers ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def same_draws(self) -> Iterator[None]:
        """Gives torch's global generators the same seed on all ranks, until the end of the block."""
        seed = int(torch.randint(2**62, (), generator=self.generator))
        devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            yield

    def leave(self) -> None:
        """Leaves the group."""
        dist.destroy_process_group(self.group)


class _Gather(torch.autograd.Function):
    """Concatenates the tensors of all ranks; a rank's own tensor gets the gradients of the losses of all ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, ranks: DistributedRanks) -> Tensor:
        ctx.ranks, tensor = ranks, tensor.contiguous()
        parts = [torch.empty_like(tensor) for _ in range(ranks.count)]
        with _answered():
            dist.all_gather(parts, tensor, group=ranks.group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # A sum, not a mean: average_gradients divides by the number of ranks afterwards.
        total = ctx.ranks.sum(gradient.contiguous())
        return total[ctx.ranks.share_of("gathered", len(total))], None


@contextlib.contextmanager
def _answered() -> Iterator[None]:
    """Turns an error of ``torch.distributed`` into a :class:`RankLost`."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise RankLost(f"another rank ended, or did not answer in time ({reason})") from error


def sendable(error: Exception) -> Exception:
    """Returns the error, or a RuntimeError with its text if the error cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an error may hold anything
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def join_ranks(*, seed: int = 0, timeout: timedelta = _WAIT) -> Ranks:
    """Joins the ranks that ``torchrun`` started, by its environment variables; :data:`ALONE` where there is only one.

    CUDA tensors are sent with NCCL, all other data with gloo.

    Keyword Args:
        seed (int): as in :class:`DistributedRanks`.
        timeout (timedelta): how long a rank waits for the other ranks. Defaults to 30 minutes.

    Raises:
        ValueError: if a variable is missing or not a number.
        RankLost: if not all ranks join in time.

    Examples:
        >>> from mcurl_torchrl.ranks import join_ranks
        >>> join_ranks().count  # not started by torchrun
        1
    """
    if _variable("WORLD_SIZE", 1) == 1:
        return ALONE
    for name in ("RANK", "LOCAL_RANK", "MASTER_PORT"):
        _variable(name)
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(_variable("LOCAL_RANK") % torch.cuda.device_count())
    with _answered():
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=timeout)
    return DistributedRanks(seed=seed)


def _variable(name: str, default: int | None = None) -> int:
    value = os.environ.get(name)
    if value is None and default is not None:
        return default
    try:
        return int(value or "")
    except ValueError:
        _refuse(name, value)


def _refuse(name: str, value: str | None) -> NoReturn:
    raise ValueError(
        f"{name}={value} beside WORLD_SIZE={os.environ['WORLD_SIZE']}; torchrun sets RANK, LOCAL_RANK, WORLD_SIZE, "
        f"MASTER_ADDR and MASTER_PORT, each rank needs them all"
    )
