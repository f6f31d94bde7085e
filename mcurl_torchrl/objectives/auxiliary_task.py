"""AuxiliaryTask: a self-supervised task that trains the encoder beside RL, as one object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torchrl.envs.transforms import Transform

from mcurl_torchrl.checks import check_count, check_number
from mcurl_torchrl.modules import MomentumCopy
from mcurl_torchrl.modules.resetting import shrink_and_perturb
from mcurl_torchrl.objectives.schedules import inverse_sqrt_warmup
from mcurl_torchrl.replay import FrameReplayBuffer, FrameSlices, copy_to

__all__ = ["AuxiliaryTask", "NoTask"]


class AuxiliaryTask(nn.Module):
    """A self-supervised task that trains an encoder beside RL.

    One object holds all of it: the data that the task samples, its loss and metrics, the networks that it trains, their
    learning-rate schedule, and the slow copies (target networks) that it updates. A training loop needs these calls
    only::

        task = MaskedContrastiveTask(encoder, buffer)
        optimizer = Adam([*agent.parameters(), *task.parameters()])
        ...
        loss = rl_loss + task.loss()
        ...
        task.update_targets()

    A subclass implements :meth:`forward`, and :meth:`update_targets` if it has slow copies. It calls
    :meth:`read_slices` to learn from slices of consecutive observations, or implements :meth:`sample`. Its constructor
    takes ``(encoder, buffer, *, ...)`` with plain keyword arguments; recipes make it from the keys of a YAML in
    ``recipes/conf/shared/objective``. It gets those parts of the agent that its constructor names: recipes offer
    ``augmentation``, ``action_spec`` and, where the agent has them, ``target_encoder`` (SAC) and ``head`` (Rainbow).
    ``state_dict`` must hold everything that a resumed run needs.

    Args:
        encoder (nn.Module): the encoder that the task shares with an RL agent. It is not registered here.

    Keyword Args:
        coeff (float): the weight of the loss. Defaults to 1.
        warmup_updates (int, optional): over how many updates the learning rate of the task's own networks grows, before
            it falls with the inverse square root, as in :func:`~mcurl_torchrl.inverse_sqrt_warmup`. Defaults to None: a
            constant rate.
        warmup_initial_scale (float): the first factor of the learning rate. Defaults to 5e-4.
        lr_scale (float): the learning rate of the task's own networks, in units of the agent's. Defaults to 1.
        shared (sequence of nn.Module): other networks of the agent that the task uses, such as its head: the agent
            trains them, so :meth:`own_parameters` leaves them out. Defaults to none.

    Attributes:
        shown (tuple of str): the metrics that a progress bar should show.
        reads_batch (bool): whether :meth:`sample` needs the batch that RL learns from; False after :meth:`read_slices`.
            If it is True, a loop without such a batch draws one for the task.
        lasting (tuple of str): the own networks that keep a part of their weights in :meth:`reset_networks`.
        steps_before_sampling (int): how many steps the replay buffer must hold before :meth:`sample` can draw.

    Raises:
        ValueError: on numbers out of range.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torch import nn
        >>> from mcurl_torchrl import AuxiliaryTask
        >>> class SmallLatents(AuxiliaryTask):
        ...     def __init__(self, encoder, buffer):
        ...         super().__init__(encoder, coeff=0.1)
        ...         self.encoder, self.buffer = encoder, buffer
        ...
        ...     def sample(self, batch=None):
        ...         return self.buffer.sample() if batch is None else batch
        ...
        ...     def forward(self, views):
        ...         return TensorDict({"loss_auxiliary": self.coeff * self.encoder(views["pixels"]).square().mean()})
        >>> task = SmallLatents(nn.Linear(4, 2), buffer=None)
        >>> task.loss(TensorDict({"pixels": torch.rand(3, 4)}, [3])).backward()
        >>> task.own_parameters()  # the encoder belongs to the RL agent
        []
    """

    shown: tuple[str, ...] = ()
    reads_batch: bool = True
    lasting: tuple[str, ...] = ()
    steps_before_sampling: int = 1

    def __init__(
        self,
        encoder: nn.Module | None,
        *,
        coeff: float = 1.0,
        warmup_updates: int | None = None,
        warmup_initial_scale: float = 5e-4,
        lr_scale: float = 1.0,
        shared: Sequence[nn.Module] = (),
    ) -> None:
        super().__init__()
        if warmup_updates is not None:
            check_count("warmup_updates", warmup_updates)
        self.coeff = check_number("coeff", coeff, least=0)
        self.warmup_updates = warmup_updates
        self.warmup_initial_scale = warmup_initial_scale
        self.lr_scale = check_number("lr_scale", lr_scale, above=0)
        self.__dict__["_encoder"] = encoder  # its owner saves it, moves it and trains it
        self.__dict__["_shared"] = [*shared] if encoder is None else [encoder, *shared]
        self._slices: FrameSlices | None = None
        self._slice_len = 0

    @property
    def device(self) -> torch.device:
        """The encoder's device."""
        encoder: nn.Module | None = self.__dict__["_encoder"]
        first = None if encoder is None else next(encoder.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    def read_slices(
        self,
        buffer: FrameReplayBuffer,
        *,
        num_slices: int,
        slice_len: int,
        keys: Sequence[NestedKey] | None = None,
        transform: Transform | None = None,
    ) -> None:
        """Makes :meth:`sample` draw slices of a buffer, ``[num_slices, slice_len]``, each of one episode.

        With several ranks (``buffer.ranks``), each rank gets its share of the slices.

        ``keys`` are the stored entries to read, as in :meth:`FrameReplayBuffer.slices
        <mcurl_torchrl.FrameReplayBuffer.slices>`; None reads the pixels alone.
        """
        self._slices = buffer.slices(num_slices=num_slices, slice_len=slice_len, keys=keys, transform=transform)
        self._slice_len = self.steps_before_sampling = slice_len
        self.reads_batch = False

    def sample(self, batch: TensorDictBase | None = None) -> TensorDictBase:
        """Draws the data of one update, on the encoder's device: slices, after :meth:`read_slices`.

        Args:
            batch (TensorDictBase, optional): the batch that RL learns from, for tasks that use the same observations.
        """
        if self._slices is None:
            raise NotImplementedError(f"{type(self).__name__} needs sample(), or a call of read_slices()")
        return copy_to(self._slices.sample().reshape(-1, self._slice_len), self.device)

    def forward(self, views: TensorDictBase) -> TensorDictBase:
        """Returns ``loss_auxiliary``, weighted by ``coeff``, and metrics without gradients, under other names."""
        raise NotImplementedError

    def loss(self, batch: TensorDictBase | None = None) -> Tensor:
        """Samples and returns the weighted loss: the term to add to an RL loss."""
        return self(self.sample(batch))["loss_auxiliary"]

    def update_targets(self) -> None:
        """Updates the slow copies that belong to the task. Call it after each optimizer step."""

    def own_parameters(self) -> list[nn.Parameter]:
        """Returns the parameters that the task trains besides the agent's."""
        shared = {value for network in self.__dict__["_shared"] for value in network.parameters()}
        return [value for value in self.parameters() if value.requires_grad and value not in shared]

    def own_networks(self) -> dict[str, nn.Module]:
        """Returns by name the networks that the task trains besides the agent's: submodules that share no parameter."""
        own = set(self.own_parameters())
        children = {name: (child, set(child.parameters())) for name, child in self.named_children()}
        return {name: child for name, (child, values) in children.items() if values and own >= values}

    def reset_networks(self, keep: float) -> list[nn.Parameter]:
        """Draws new weights of the task's own networks and slow copies, for an agent that resets its networks.

        Networks that ``lasting`` names, and slow copies of the encoder, keep a part of their weights.

        Args:
            keep (float): this part, between 0 and 1.

        Returns:
            The parameters that are new: an optimizer should delete its state of them.
        """
        new: list[nn.Parameter] = []
        for name, network in self.own_networks().items():
            shrink_and_perturb(network, keep if name in self.lasting else 0.0)
            new += [] if name in self.lasting else network.parameters()
        for child in self.children():
            if isinstance(child, MomentumCopy) and child.tau == 1:
                child.step()  # the targets are the networks themselves
            elif isinstance(child, MomentumCopy):
                shrink_and_perturb(child.copy, keep if child.follows(self.__dict__["_encoder"]) else 0.0)
        return new

    def param_groups(self, lr: float) -> list[dict[str, Any]]:
        """Returns the optimizer groups of the task's own networks: one group, or none."""
        own = self.own_parameters()
        return [{"params": own, "lr": self.lr_scale * lr}] if own else []

    def make_schedule(self, optimizer: Optimizer) -> LambdaLR | None:
        """Makes the schedule of the task's own groups in an optimizer; other groups stay constant.

        Returns:
            A schedule to step once per update, or None if every rate is constant.
        """
        own = set(self.own_parameters())
        if self.warmup_updates is None or not own:
            return None
        rising = inverse_sqrt_warmup(self.warmup_updates, initial_scale=self.warmup_initial_scale)
        scales: list[Callable[[int], float]] = [
            rising if own.issuperset(group["params"]) else _constant for group in optimizer.param_groups
        ]
        return LambdaLR(optimizer, scales)


def _constant(update: int) -> float:
    return 1.0


class NoTask(AuxiliaryTask):
    """No auxiliary task: RL alone. Its loss is 0 without a graph, and it has no parameters.

    Examples:
        >>> from mcurl_torchrl.objectives import NoTask
        >>> NoTask().loss()
        tensor(0.)
    """

    steps_before_sampling = 0
    reads_batch = False

    def __init__(self, encoder: nn.Module | None = None, buffer: Any = None, **ignored: Any) -> None:
        super().__init__(encoder)

    def sample(self, batch: TensorDictBase | None = None) -> TensorDictBase:
        """Returns an empty tensordict."""
        return TensorDict()

    def forward(self, views: TensorDictBase) -> TensorDictBase:
        """Returns a loss of 0."""
        return TensorDict({"loss_auxiliary": torch.zeros((), device=self.device)})
