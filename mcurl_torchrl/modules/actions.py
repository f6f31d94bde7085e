"""Actions as vectors and tokens, and a context network that sees them beside latents."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchrl.data import Categorical, TensorSpec

from mcurl_torchrl.checks import check_choice, check_count

__all__ = ["ACTION_LAYOUTS", "ActionContext", "ActionEmbedding", "ActionVectors"]

ACTION_LAYOUTS = ("interleaved", "added")


class ActionVectors(nn.Module):
    """Turns actions into vectors that a layer can read: a discrete action becomes one-hot; a vector stays as it is.

    Args:
        action_spec (TensorSpec): ``env.action_spec``: a :class:`~torchrl.data.Categorical`, or vectors ``[A]``.

    Attributes:
        size (int): the size of a vector: A, or the number of discrete actions.

    Raises:
        ValueError: on actions of another kind, and on a batch of another shape or dtype.

    Examples:
        >>> import torch
        >>> from torchrl.data import Categorical
        >>> from mcurl_torchrl.modules.actions import ActionVectors
        >>> ActionVectors(Categorical(3))(torch.tensor([2, 0])).tolist()
        [[0, 0, 1], [1, 0, 0]]
    """

    def __init__(self, action_spec: TensorSpec) -> None:
        super().__init__()
        self.action_shape = tuple(action_spec.shape)
        # Vectors of discrete numbers are Categorical, too: MultiCategorical and Binary are subclasses.
        self.is_discrete = isinstance(action_spec, Categorical) and action_spec.shape.numel() == 1
        if self.is_discrete:
            self.size = int(action_spec.space.n)
        elif len(self.action_shape) == 1:
            self.size = self.action_shape[0]
        else:
            raise ValueError(f"action_spec={action_spec}; actions must be one Categorical or vectors [A]")

    def forward(self, action: Tensor) -> Tensor:
        """Turns actions ``[*, A]``, or indices ``[*]``, into vectors ``[*, size]``."""
        lead = action.shape[: action.ndim - len(self.action_shape)]
        if tuple(action.shape[len(lead) :]) != self.action_shape:
            raise ValueError(f"actions must be {['*', *self.action_shape]}; got {list(action.shape)}")
        if not self.is_discrete:
            return action
        if action.is_floating_point() or action.dtype == torch.bool:
            raise ValueError(f"actions must be integer indices; got {action.dtype}")
        return F.one_hot(action.reshape(lead).long(), self.size)


class ActionEmbedding(nn.Module):
    """Turns actions, continuous or discrete, into vectors of the size of a latent.

    Discrete actions become one-hot vectors first. With ``hidden_dim`` the network is a linear layer, ReLU, a linear
    layer and LayerNorm; the released code of M-CURL contains this network, but does not use it. Without ``hidden_dim``
    it is one linear layer, as in MLR (https://arxiv.org/abs/2201.12096).

    Args:
        action_spec (TensorSpec): ``env.action_spec``: a :class:`~torchrl.data.Categorical`, or vectors ``[A]``.
        feature_dim (int): the size of a vector.

    Keyword Args:
        hidden_dim (int, optional): the width of the hidden layer. Defaults to None: one linear layer.

    Raises:
        ValueError: on actions of another kind, and on a batch of another shape or dtype.

    Examples:
        >>> import torch
        >>> from torchrl.data import Bounded, Categorical
        >>> from mcurl_torchrl.modules import ActionEmbedding
        >>> ActionEmbedding(Bounded(-1, 1, shape=(6,)), 50)(torch.rand(16, 32, 6)).shape
        torch.Size([16, 32, 50])
        >>> ActionEmbedding(Categorical(4), 50)(torch.randint(4, (16, 32))).shape
        torch.Size([16, 32, 50])
    """

    def __init__(self, action_spec: TensorSpec, feature_dim: int, *, hidden_dim: int | None = None) -> None:
        super().__init__()
        check_count("feature_dim", feature_dim)
        self.vectors = ActionVectors(action_spec)
        inputs = self.vectors.size
        if hidden_dim is None:
            self.layers: nn.Module = nn.Linear(inputs, feature_dim)
        else:
            self.layers = nn.Sequential(
                nn.Linear(inputs, check_count("hidden_dim", hidden_dim)),
                nn.ReLU(),
                nn.Linear(hidden_dim, feature_dim),
                nn.LayerNorm(feature_dim),
            )

    def forward(self, action: Tensor) -> Tensor:
        """Turns actions ``[*, A]``, or indices ``[*]``, into vectors ``[*, feature_dim]``."""
        return self.layers(self.vectors(action).to(self.dtype))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights. They may be plain tensors, because a loss module replaces parameters by its own."""
        first = self.layers[0] if isinstance(self.layers, nn.Sequential) else self.layers
        weight: Tensor = first.weight  # type: ignore[assignment]
        return weight.dtype


class ActionContext(nn.Module):
    """A context network that sees, beside each latent, the action taken there.

    An observation may be hidden, but its action is always visible. ``"interleaved"`` gives the context network twice as
    many tokens, ``o_0, a_0, o_1, a_1, ...``, and returns its outputs at the latents; ``"added"`` adds each action's
    vector to the latent of its observation. After the last observation of an episode no action is taken: the vector
    there is 0.

    Args:
        context (nn.Module): tokens ``[*, T, d]`` to tokens ``[*, T, d]``, for any T, with ``feature_dim``, like
            :class:`~mcurl_torchrl.ContextTransformer`.
        embedding (ActionEmbedding): actions to vectors ``[*, T, d]``.

    Keyword Args:
        layout (str): ``"interleaved"`` or ``"added"``. Defaults to ``"interleaved"``.

    Examples:
        >>> import torch
        >>> from torchrl.data import Categorical
        >>> from mcurl_torchrl import ContextTransformer
        >>> from mcurl_torchrl.modules import ActionContext, ActionEmbedding
        >>> context = ActionContext(ContextTransformer(50), ActionEmbedding(Categorical(4), 50))
        >>> action, final = torch.randint(4, (16, 32)), torch.zeros(16, 32, dtype=torch.bool)
        >>> context(torch.randn(16, 32, 50), action, final).shape
        torch.Size([16, 32, 50])
    """

    def __init__(self, context: nn.Module, embedding: ActionEmbedding, *, layout: str = "interleaved") -> None:
        super().__init__()
        self.layout = check_choice("layout", layout, ACTION_LAYOUTS)
        self.context = context
        self.embedding = embedding
        self.feature_dim: int = context.feature_dim  # type: ignore[assignment]

    def forward(self, latents: Tensor, action: Tensor, final: Tensor, valid: Tensor | None = None) -> Tensor:
        """Reconstructs latents ``[*, T, d]`` from the latents and the actions.

        ``final``, bool ``[*, T]``, is True where no action was taken. ``valid``, bool ``[*, T]``, is False at padding;
        with it, the context network must have an argument ``valid``, too.
        """
        tokens = self.embedding(action) * ~final.view(*latents.shape[:-1], 1)
        if self.layout == "added":
            return self._reconstruct(latents + tokens, valid)
        pairs = torch.stack([latents, tokens], dim=-2).flatten(-3, -2)
        return self._reconstruct(pairs, None if valid is None else valid.repeat_interleave(2, dim=-1))[..., ::2, :]

    def _reconstruct(self, tokens: Tensor, valid: Tensor | None) -> Tensor:
        return self.context(tokens) if valid is None else self.context(tokens, valid=valid)
