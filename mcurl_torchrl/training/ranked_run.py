"""RankedRun: a TrainingRun of several ranks, with one directory, one checkpoint and one log."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torchrl.checkpoint import GlobalRNGState
from torchrl.envs import EnvBase

from mcurl_torchrl.ranks import Ranks, RanksDiffer, sendable
from mcurl_torchrl.training.checkpoints import SavedCheckpoint
from mcurl_torchrl.training.plan import RunPlan
from mcurl_torchrl.training.run import TrainingRun
from mcurl_torchrl.training.seeds import derive_seed, seed_everything

__all__ = ["RankedRun"]

_RANDOM_STATES = "random_of_ranks"
# Attributes that evaluations and saves change on the first rank, and that the other ranks have to get.
_SHARED = ("completed", "_evaluation_due", "_saved_step", "_last_saved")


class RankedRun(TrainingRun):
    """A run that several ranks train: the first one logs, evaluates and saves, the others wait for it.

    Every rank calls the same methods in the same order, with its own networks and replay. These stay equal on all
    ranks, which is checked before each save. A checkpoint has the random states of all ranks: resumed by the same
    number of ranks, the run equals one that was not stopped, bit for bit. A stop signal to any rank stops all ranks at
    the same step.

    Args:
        directory (str or Path): the run's folder, which all ranks must see: each reads the checkpoint to resume from.
        plan (RunPlan): as in :class:`TrainingRun`.

    Keyword Args:
        ranks (Ranks): the ranks.
        **options: as in :class:`TrainingRun`.

    Raises:
        RanksDiffer: before a save, if the ranks' networks, optimizers or replays are not the same; nothing is saved.
        RankLost: if another rank ended, or did not answer in time.

    Examples:
        >>> # in a program that torchrun starts, in place of TrainingRun:
        >>> # run = RankedRun("runs/mine", plan, ranks=join_ranks(), resume=True)
        >>> from mcurl_torchrl.training import RankedRun
    """

    def __init__(self, directory: str | Path, plan: RunPlan, *, ranks: Ranks, **options: Any) -> None:
        super().__init__(directory, plan, **options)
        self.ranks = ranks
        self._info["ranks"] = ranks.count
        self._random_states = _RandomStates(ranks)

    def begin(self, act: Callable[[Tensor], Tensor], envs: EnvBase | Sequence[EnvBase]) -> None:
        """As in :class:`TrainingRun`; from here on each rank draws other random numbers."""
        self._draw_apart(0)
        super().begin(act, envs)

    def _draw_apart(self, step: int) -> None:
        """Gives each rank its own seed, and all ranks the same seed for the shared generator."""
        assert self.ranks.generator is not None
        self.ranks.generator.manual_seed(derive_seed(self.plan.seed, "ranks", step))
        if not self.ranks.leads:
            seed_everything(derive_seed(self.plan.seed, "rank", self.ranks.index, step + 1))

    def _stops(self) -> bool:
        """Returns whether any rank got a stop signal; then all ranks store its name."""
        own = self.stop.signal_name
        if number := self.ranks.highest(0 if own is None else int(signal.Signals[own])):
            self.stop.signal_name = own or signal.Signals(number).name
        return self.stop.requested

    # -- evaluating and saving -----------------------------------------------------------------------------------------

    def evaluate(self, step: int, act: Callable[[Tensor], Tensor], envs: EnvBase | Sequence[EnvBase]) -> None:
        """As in :class:`TrainingRun`, on the first rank."""
        self._on_first(step, lambda: TrainingRun.evaluate(self, step, act, envs))

    def _write_result_again(self) -> None:
        if self.ranks.leads:
            super()._write_result_again()

    def save(self, step: int, *, score: float | None = None) -> None:
        """As in :class:`TrainingRun`, on the first rank."""
        if self._sign_of_life is not None:  # within an evaluation
            super().save(step, score=score)
        else:
            self._on_first(step, lambda: TrainingRun.save(self, step, score=score))

    def _on_first(self, step: int, work: Callable[[], None]) -> None:
        """Compares the ranks, collects their random states, and calls ``work``, which may save, on the first rank."""
        self._check_same(step)
        self._random_states.collect()

        raised: list[Exception] = []

        def guarded(sign_of_life: Callable[[], None]) -> tuple[Exception | None, dict[str, Any]]:
            assert self._components is not None
            self._sign_of_life = sign_of_life
            self._components[_RANDOM_STATES] = self._random_states
            try:
                work()
            except Exception as error:  # the others get the changed attributes first, then raise the error, too
                raised.append(error)
            finally:
                self._sign_of_life = None
                del self._components[_RANDOM_STATES]
            return sendable(raised[0]) if raised else None, {name: getattr(self, name) for name in _SHARED}

        error, changed = self.ranks.on_first(guarded)
        for name, value in changed.items():
            setattr(self, name, value)
        if error is not None:
            raise raised[0] if raised else error

    def _check_same(self, step: int) -> None:
        found = self.ranks.collect(self._fingerprint())
        for index, other in enumerate(found):
            if names := [name for name in other if other[name] != found[0].get(name)]:
                raise RanksDiffer(
                    f"at agent step {step:,} rank {index} has other {', '.join(names)} than rank 0: they do not learn "
                    f"together any more; nothing was saved, and the last checkpoint is {self._last_saved}"
                )

    def _fingerprint(self) -> dict[str, str]:
        """Returns checksums of the states that must be equal on all ranks; of the replay, those of its newest rows."""
        parts = {
            name: part.state_dict()
            for name, part in (self._components or {}).items()
            if isinstance(part, (nn.Module, Optimizer))
        }
        if self._replay is not None:
            parts["replay"] = {**self._replay.writer.state_dict(), **self._replay.sampler.state_dict()}
        return {name: _digest(state) for name, state in parts.items()}

    # -- resuming ------------------------------------------------------------------------------------------------------

    def _restore_ranks(self, restored: SavedCheckpoint) -> None:
        if restored.info.get("ranks", 1) == self.ranks.count:
            self.checkpoints.restore(components={_RANDOM_STATES: self._random_states}, step=restored.step)
        else:
            self._draw_apart(restored.step)
        if len(steps := set(self.ranks.collect(restored.step))) > 1:
            raise RanksDiffer(f"ranks read the checkpoints of different steps: {sorted(steps)}")


class _RandomStates:
    """The random states of all ranks, as a part of the first rank's checkpoint."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._collected: list[dict[str, Any]] = []

    def collect(self) -> None:
        """Collects the states of all ranks."""
        self._collected = self.ranks.collect(GlobalRNGState().state_dict())

    def state_dict(self) -> dict[str, Any]:
        assert self.ranks.generator is not None
        # The first rank's current state: it may have drawn random numbers since the states were collected.
        own = [GlobalRNGState().state_dict(), *self._collected[1:]]
        return {"shared": self.ranks.generator.get_state(), "own": own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert self.ranks.generator is not None
        self.ranks.generator.set_state(state["shared"])
        GlobalRNGState().load_state_dict(state["own"][self.ranks.index])


def _digest(state: Any) -> str:
    """Returns a checksum of the tensors and numbers of a state."""
    digest = hashlib.sha256()
    for name, value in _leaves(state):
        digest.update(name.encode())
        if isinstance(value, Tensor):
            value = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        digest.update(value if isinstance(value, bytes) else repr(value).encode())
    return digest.hexdigest()


def _leaves(state: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(state, Mapping):
        for key, value in state.items():
            yield from _leaves(value, f"{name}.{key}")
    elif isinstance(state, (list, tuple)):
        for number, value in enumerate(state):
            yield from _leaves(value, f"{name}.{number}")
    else:
        yield name, state
