"""SelfPredictionTask: self-predictive representations (SPR) as one object beside RL."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Categorical, TensorSpec

from mcurl_torchrl.checks import check_count, require
from mcurl_torchrl.modules import ConvTransition, DuelingHead, HeadProjection, LatentTransition, MomentumCopy
from mcurl_torchrl.modules.encoders import rescale_latents
from mcurl_torchrl.objectives.auxiliary_task import AuxiliaryTask
from mcurl_torchrl.objectives.functional import normalized_distance, reduce_masked
from mcurl_torchrl.replay import FrameReplayBuffer, copy_to
from mcurl_torchrl.replay.windows import STEP_KEY, TRAJECTORY_KEY

__all__ = ["SelfPredictionTask"]


class SelfPredictionTask(AuxiliaryTask):
    """Predicts the latents of the next observations, step by step, from the actions (SPR).

    It starts at the observations of RL's own batch. A model of transitions predicts the next K observations, one after
    the other. Each prediction goes through a projection and a predictor; the loss is its distance in direction from the
    projected true observation. Observations after the end of an episode do not count, and each sequence has the
    importance weight of its transition. See https://arxiv.org/abs/2007.05929. Metric: ``prediction_similarity``, the
    mean cosine over observations that count.

    With a ``head`` it is SPR as published, for Rainbow: a convolutional model predicts the features of the convolutions
    from discrete actions, the first layers of the head are the projection, and a linear layer is the predictor. Without
    a head, it is the form that PlayVirtual (https://arxiv.org/abs/2106.04152) gave it for SAC: the model
    (:class:`~mcurl_torchrl.modules.LatentTransition`) predicts the encoder's latents from continuous or discrete
    actions; projection and predictor have two linear layers each.

    Args:
        encoder (nn.Module): pixels ``[*, C, H, W]`` to latents ``[*, d]``, with ``feature_dim``. With a head it needs
            ``features()``, ``num_features`` and ``feature_shape``, like :class:`~mcurl_torchrl.AtariEncoder`.
        buffer (FrameReplayBuffer): the replay buffer of the RL agent; actions are read under its ``action_key``.

    Keyword Args:
        action_spec (TensorSpec): ``env.action_spec``; with a head, a :class:`~torchrl.data.Categorical`.
        head (DuelingHead, optional): the agent's head on the encoder's features. Defaults to None.
        target_encoder (nn.Module, optional): encodes the targets, and belongs to another object, which updates it. Not
            together with a head. Defaults to None: the task has a slow copy of its own.
        augmentation (callable, optional): images to images, random for each observation and view; SPR uses a shift and
            a change of brightness (:func:`~mcurl_torchrl.transforms.make_augmentation`). Defaults to None.
        share_start (bool): whether prediction starts at the observation as RL learns from it, which the buffer may
            augment, as in SPR; otherwise the task augments it separately. Defaults to False.
        steps_ahead (int): K. Defaults to 5.
        target_tau (float): how far :meth:`update_targets` moves the task's own slow copies. Defaults to 1, the value of
            SPR with augmentation: the copies equal the networks. Without augmentation, SPR uses 0.01.
        model_dim, hidden_dim (int): without a head, the hidden width of the model, and that of projection and
            predictor. Default to 512 and 100.
        coeff (float): the weight of the loss. Defaults to 5.

    Raises:
        ValueError: on numbers out of range, on actions of another kind, and on a head together with a target encoder.

    Examples:
        >>> from torchrl.data import Bounded, Categorical, LazyTensorStorage
        >>> from mcurl_torchrl import FrameReplayBuffer, PixelEncoder, RandomCrop
        >>> from mcurl_torchrl.modules import RainbowPolicy
        >>> from mcurl_torchrl.objectives.self_prediction_task import SelfPredictionTask
        >>> buffer = FrameReplayBuffer(storage=LazyTensorStorage(1000), num_frames=4, batch_size=32)
        >>> network = RainbowPolicy([4, 84, 84], 6, architecture="nature", rescale=True).network
        >>> task = SelfPredictionTask(network.encoder, buffer, action_spec=Categorical(6), head=network.head)
        >>> # in the training loop: batch = buffer.sample(); loss = rl_loss + task.loss(batch)
        >>> continuous = SelfPredictionTask(
        ...     PixelEncoder(12, 84), buffer, action_spec=Bounded(-1, 1, shape=(6,)), augmentation=RandomCrop(84)
        ... )
    """

    shown = ("prediction_similarity",)
    lasting = ("transition",)

    def __init__(
        self,
        encoder: nn.Module,
        buffer: FrameReplayBuffer,
        *,
        action_spec: TensorSpec,
        head: DuelingHead | None = None,
        target_encoder: nn.Module | None = None,
        augmentation: Callable[[Tensor], Tensor] | None = None,
        share_start: bool = False,
        steps_ahead: int = 5,
        target_tau: float = 1.0,
        model_dim: int = 512,
        hidden_dim: int = 100,
        coeff: float = 5.0,
    ) -> None:
        super().__init__(encoder, coeff=coeff, shared=[] if head is None else [head])
        self.transition: nn.Module
        self.projection: nn.Module
        self.predictor: nn.Module
        self.encoder = encoder
        self.steps_ahead = check_count("steps_ahead", steps_ahead)
        self.predicts_features = head is not None
        if head is None:
            size: int = encoder.feature_dim  # type: ignore[assignment]
            self.transition = LatentTransition(action_spec, size, hidden_dim=check_count("model_dim", model_dim))
            self.projection = _two_layers(size, hidden_dim)
            self.predictor = _two_layers(size, hidden_dim)
        elif not isinstance(action_spec, Categorical):
            raise ValueError(f"action_spec={action_spec}; with a head, SPR takes discrete actions (Categorical)")
        elif target_encoder is not None:
            raise ValueError(
                "head and target_encoder are both given; with a head the task makes its own slow copy: leave "
                "target_encoder out"
            )
        else:
            shape: tuple[int, ...] = encoder.feature_shape  # type: ignore[assignment]
            self.transition = ConvTransition(shape, int(action_spec.space.n), ranks=buffer.ranks)
            self.projection = HeadProjection(head)
            self.predictor = nn.Linear(head.hidden_dim, head.hidden_dim)
        self.to(self.device)
        self.target_encoder = MomentumCopy(encoder, tau=target_tau) if target_encoder is None else None
        self.__dict__["_shared_target"] = target_encoder  # its owner saves it, moves it and trains it
        self.target_projection = MomentumCopy(self.projection, tau=target_tau)
        self.share_start = share_start
        self._augmentation = augmentation
        self._buffer = buffer

    def sample(self, batch: TensorDictBase | None = None) -> TensorDictBase:
        """Reads the K observations after each observation of RL's batch ``[B]``.

        Returns:
            A batch ``[B]`` with ``pixels``, the first observations; ``following``, the K after each; the ``action``
            before each of these; ``valid``, whether it is of the same episode; and ``weight``.
        """
        if batch is None:
            raise ValueError("SPR starts at the observations that RL learns from: task.loss(buffer.sample())")
        read = copy_to(self._read_after(batch), self.device)
        pixels, action = read[self._buffer.pixels_key], read[self._buffer.action_key]
        weight = batch.get("priority_weight", None)
        weight = torch.ones(len(pixels), device=self.device) if weight is None else weight.to(self.device).view(-1)
        return TensorDict(
            {
                "pixels": batch[self._buffer.pixels_key] if self.share_start else self._augment(pixels[:, 0]),
                "following": self._augment(pixels[:, 1:]),
                "action": action[:, :-1],
                "valid": read["collector", "mask"][:, 1:],
                "weight": weight,
            },
            batch_size=[len(pixels)],
        )

    def _augment(self, pixels: Tensor) -> Tensor:
        return pixels if self._augmentation is None else self._augmentation(pixels)

    def _read_after(self, batch: TensorDictBase) -> TensorDictBase:
        """Reads the observations of a batch ``[B]`` and the K after each, ``[B, K + 1]``."""
        for key in ("index", TRAJECTORY_KEY, STEP_KEY):
            require(batch, key, self)
        keys = [self._buffer.pixels_key, self._buffer.action_key]
        rows = batch.select("index", TRAJECTORY_KEY, STEP_KEY).to(self._buffer.storage.device)
        read = self._buffer.slices_at(rows, slice_len=self.steps_ahead + 1, keys=keys)
        return read.reshape(len(batch), self.steps_ahead + 1)

    def forward(self, views: TensorDictBase) -> TensorDictBase:
        """Returns ``loss_auxiliary`` and ``prediction_similarity`` of a batch ``[B]``."""
        action, valid = views["action"], views["valid"]
        latents, predictions = self._latents(self.encoder, views["pixels"]), []
        for step in range(self.steps_ahead):
            latents = self.transition(latents, action[:, step])
            predictions.append(latents)
        predicted = self.predictor(self.projection(torch.stack(predictions, dim=1)))
        targets = self._targets(views["following"])
        distance = torch.where(valid, normalized_distance(predicted, targets), 0.0)
        loss = (views["weight"] * distance.mean(1)).mean()
        return TensorDict(
            {
                "loss_auxiliary": self.coeff * loss,
                "prediction_similarity": 1 - reduce_masked(distance.detach(), valid, ranks=self._buffer.ranks) / 2,
            }
        )

    def _latents(self, encoder: nn.Module, pixels: Tensor) -> Tensor:
        """Encodes observations as the model predicts them: rescaled features with a head, otherwise latents."""
        if not self.predicts_features:
            return encoder(pixels)
        # Features that the encoder has already rescaled stay as they are.
        return rescale_latents(encoder.features(pixels))  # type: ignore[operator]

    @torch.no_grad()
    def _targets(self, pixels: Tensor) -> Tensor:
        target: nn.Module = self.__dict__["_shared_target"] if self.target_encoder is None else self.target_encoder.copy
        return self.target_projection(self._latents(target, pixels))

    def update_targets(self) -> None:
        """Updates the slow copies of the projection and, if the task has one, of the encoder."""
        self.target_projection.step()
        if self.target_encoder is not None:
            self.target_encoder.step()


def _two_layers(size: int, hidden_dim: int) -> nn.Sequential:
    # Not SmallNetwork: PlayVirtual's layers start as PyTorch's do, MLR's with small weights.
    return nn.Sequential(nn.Linear(size, check_count("hidden_dim", hidden_dim)), nn.ReLU(), nn.Linear(hidden_dim, size))
