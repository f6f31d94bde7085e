"""Actions as vectors. ActionContext at padding: its values have no effect; a padded slice gives the same as alone."""

from __future__ import annotations

import pytest
import torch
from torchrl.data import Binary, Bounded, Categorical, MultiCategorical, OneHot, TensorSpec, Unbounded

from mcurl_torchrl import ContextTransformer, MaskedContrastiveLoss
from mcurl_torchrl.modules import ActionContext, ActionEmbedding
from mcurl_torchrl.modules.actions import ACTION_LAYOUTS, ActionVectors
from tests.objectives.test_padding import make_encoder, sample_padded, unpadded

LENGTHS = (2, 5, 7)  # of slices that are padded to the longest


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        (Categorical(4), 4),
        (Categorical(4, shape=(1,)), 4),
        (Bounded(-1, 1, shape=(3,)), 3),
        (OneHot(4), 4),
        (Binary(3), 3),
        (MultiCategorical((3, 2)), 2),  # as TorchRL's wrapper of Gymnasium's MultiDiscrete
        (Categorical(4, shape=(2,)), 2),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, TensorSpec) else str(value),
)
def test_actions_become_vectors(spec: TensorSpec, size: int) -> None:
    vectors = ActionVectors(spec)
    action = spec.rand() if spec.shape.numel() == 1 and not spec.shape else torch.stack([spec.rand() for _ in range(6)])
    made = vectors(action)
    assert made.shape == (*action.shape[: action.ndim - len(spec.shape)], size) and vectors.size == size
    if not vectors.is_discrete:
        assert torch.equal(made, action)
    else:
        assert torch.equal(made.argmax(-1), action.reshape(made.shape[:-1])) and (made.sum(-1) == 1).all()


def test_which_actions_have_no_vectors() -> None:
    with pytest.raises(ValueError, match=r"actions must be one Categorical or vectors \[A\]"):
        ActionVectors(Unbounded(shape=(2, 3)))
    with pytest.raises(ValueError, match=r"actions must be \['\*', 3\]; got \[5, 2\]"):
        ActionVectors(Bounded(-1, 1, shape=(3,)))(torch.zeros(5, 2))
    with pytest.raises(ValueError, match="integer indices; got torch.float32"):
        ActionVectors(Categorical(3))(torch.zeros(5))


@pytest.fixture(params=ACTION_LAYOUTS)
def context(request: pytest.FixtureRequest) -> ActionContext:
    embedding = ActionEmbedding(Bounded(-1, 1, shape=(3,)), 8, hidden_dim=16)
    return ActionContext(ContextTransformer(8, num_layers=2, dropout=0.0), embedding, layout=request.param)


def draw() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    latents, action, place = torch.randn(3, 7, 8), torch.randn(3, 7, 3), torch.arange(7)
    lengths = torch.tensor(LENGTHS)[:, None]
    return latents, action, place == lengths - 1, place < lengths


def test_a_padded_slice_is_reconstructed_as_it_is_alone(context: ActionContext) -> None:
    latents, action, final, valid = draw()
    made = context(latents, action, final, valid)
    for row, length in enumerate(LENGTHS):
        alone = context(latents[row, :length], action[row, :length], final[row, :length])
        torch.testing.assert_close(made[row, :length], alone)
    assert not torch.allclose(context(latents, action, final)[0, :2], made[0, :2], rtol=1e-2)  # without the mask


def test_neither_latents_nor_actions_of_padding_are_read(context: ActionContext) -> None:
    latents, action, final, valid = draw()
    made = context(latents, action, final, valid)
    other = torch.randn_like(latents), torch.randn_like(action)
    for changed in (0, 1):
        parts = [latents.clone(), action.clone()]
        parts[changed][~valid] = other[changed][~valid]
        assert torch.equal(context(*parts, final, valid)[valid], made[valid])


def test_m_curl_with_actions_leaves_padding_out(context: ActionContext) -> None:
    options = {"negatives": "sequence", "reduction": "sum", "context_keys": ["action", "final"]}
    loss = MaskedContrastiveLoss(make_encoder(), context, **options)
    loss.update_target(1.0)
    batch = sample_padded()
    batch["action"] = torch.randn(*batch.shape, 3)
    batch["final"] = torch.zeros(batch.shape, dtype=torch.bool)
    alone = [loss(one.unsqueeze(0))["loss_contrastive"] for one in unpadded(batch)]
    torch.testing.assert_close(loss(batch)["loss_contrastive"], torch.stack(alone).sum())
