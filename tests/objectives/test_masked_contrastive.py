"""MaskedContrastiveLoss: gradients, the shortcut, edges, TorchRL's contracts, and what it refuses."""

from __future__ import annotations

import copy

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import Compose
from torchrl.objectives import SoftUpdate

from mcurl_torchrl import (
    ContextTransformer,
    ContrastiveLoss,
    MaskedContrastiveLoss,
    MaskObservations,
    PixelEncoder,
    RandomCrop,
)
from mcurl_torchrl.objectives.parameters import call_with


def make_encoder(**options) -> PixelEncoder:
    return PixelEncoder(3, 16, **{"num_layers": 2, "num_filters": 4, "feature_dim": 8, **options})


def make_loss(*, dropout: float = 0.0, **options) -> MaskedContrastiveLoss:
    return MaskedContrastiveLoss(make_encoder(), ContextTransformer(8, dropout=dropout), **options)


def make_batch(slices: int = 3, length: int = 6, ratio: float = 0.5) -> TensorDict:
    pixels = torch.randint(1, 256, (slices, length, 3, 16, 16), dtype=torch.uint8)
    batch = TensorDict({"mcurl": {"query_pixels": pixels.clone(), "key_pixels": pixels}}, [slices, length])
    return MaskObservations(ratio)(batch)


def gradients(loss: MaskedContrastiveLoss, batch: TensorDict) -> tuple[torch.Tensor, list[torch.Tensor]]:
    loss.zero_grad()
    value = loss(batch)["loss_contrastive"]
    value.backward()
    return value.detach(), [parameter.grad.clone() for parameter in loss.parameters() if parameter.grad is not None]


class TestGradients:
    @pytest.mark.parametrize("key_context", [False, True])
    def test_who_gets_them(self, key_context: bool) -> None:
        loss = make_loss(key_context=key_context)
        SoftUpdate(loss, tau=0.05)
        batch = make_batch()
        gradients(loss, batch)
        for name in ("encoder_network_params", "context_network_params"):
            for key, parameter in getattr(loss, name).items(True, True):
                assert parameter.grad is not None and parameter.grad.abs().sum() > 0, (name, key)
        targets = [*loss.target_encoder_network_params.items(True, True)]
        targets += loss.target_context_network_params.items(True, True) if key_context else []
        for key, parameter in targets:
            assert not parameter.requires_grad and parameter.grad is None, key
        assert not any("target" in name for name, _ in loss.named_parameters())

    def test_a_shared_target_encoder_gets_none_and_is_used(self) -> None:
        target = make_encoder()
        loss = make_loss(target_encoder_network=target)
        batch = make_batch()
        before, _ = gradients(loss, batch)
        assert all(parameter.grad is None for parameter in target.parameters())
        assert not {id(p) for p in target.parameters()} & {id(p) for p in loss.parameters()}
        assert not any("target" in name for name in loss.state_dict())
        with torch.no_grad():
            for parameter in target.parameters():
                parameter.add_(torch.randn_like(parameter))
        assert gradients(loss, batch)[0] != before

    @pytest.mark.parametrize("ratio", [0.3, 0.7, 1.0])
    @pytest.mark.parametrize("negatives", ["batch", "sequence"])
    def test_encoding_zeros_once_changes_nothing(self, ratio: float, negatives: str) -> None:
        once = make_loss(negatives=negatives)
        plain = make_loss(negatives=negatives, encode_zeros_once=False)
        plain.load_state_dict(once.state_dict())
        batch = make_batch(ratio=ratio)
        assert batch["mcurl", "zeroed"].any()
        value, grads = gradients(once, batch)
        expected, expected_grads = gradients(plain, batch)
        torch.testing.assert_close(value, expected)
        assert len(grads) == len(expected_grads)
        for grad, expected_grad in zip(grads, expected_grads, strict=True):
            torch.testing.assert_close(grad, expected_grad, rtol=1e-4, atol=1e-6)

    def test_zeros_are_really_encoded_once(self) -> None:
        loss = make_loss()
        batch = make_batch(4, 10, ratio=0.9)
        sizes = []
        loss.encoder_network.register_forward_hook(
            lambda module, inputs, output: sizes.append(output.shape[:-1].numel())
        )
        loss(batch)
        shown = int((~batch["mcurl", "zeroed"]).sum())
        assert sizes == [shown + 1, 40]  # queries, keys

    @pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(8)], ids=["dropout", "batch-norm"])
    def test_the_shortcut_is_off_where_latents_would_differ(self, layer: nn.Module) -> None:
        sizes = []
        encoder = nn.Sequential(nn.Flatten(0, 1), make_encoder(), layer, nn.Unflatten(0, (4, 10)))
        loss = MaskedContrastiveLoss(encoder, ContextTransformer(8))
        loss.encoder_network[1].register_forward_hook(lambda module, inputs, output: sizes.append(len(output)))
        loss(make_batch(4, 10, ratio=0.9))
        assert sizes == [40, 40]

    def test_soft_update_moves_the_key_encoder(self) -> None:
        loss = make_loss()
        updater = SoftUpdate(loss, tau=0.25)
        with torch.no_grad():
            for parameter in loss.encoder_network_params.values(True, True):
                parameter.add_(torch.randn_like(parameter))
        before = loss.target_encoder_network_params.clone()
        updater.step()
        for key, value in loss.target_encoder_network_params.items(True, True):
            expected = 0.25 * loss.encoder_network_params.get(key).detach() + 0.75 * before.get(key)
            torch.testing.assert_close(value, expected)

    def test_keys_come_from_the_target_encoder(self) -> None:
        loss = make_loss()
        pixels = make_batch()["mcurl", "key_pixels"]
        before = loss.encode_keys(pixels)
        with torch.no_grad():
            for parameter in loss.encoder_network_params.values(True, True):
                parameter.add_(torch.randn_like(parameter))
        assert torch.equal(loss.encode_keys(pixels), before)
        assert not torch.equal(loss.encode(pixels), before)

    def test_key_context_has_no_dropout_and_no_gradient(self) -> None:
        loss = make_loss(dropout=0.5, key_context=True).train()
        SoftUpdate(loss, tau=0.05)
        pixels = make_batch()["mcurl", "key_pixels"]
        keys = loss._keys(pixels)
        assert torch.equal(keys, loss._keys(pixels)) and not keys.requires_grad
        assert loss.context_network.training
        loss.context_network.eval()
        expected = call_with(loss.target_context_network_params, loss.context_network, loss.encode_keys(pixels))
        torch.testing.assert_close(keys, expected)


class TestEdges:
    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    def test_nothing_masked(self, reduction: str) -> None:
        loss = make_loss(reduction=reduction)
        out = loss(make_batch(ratio=0.0))
        assert out["loss_contrastive"] == 0 and out["masked_fraction"] == 0
        assert all(value.isfinite().all() for value in out.values())
        out["loss_contrastive"].backward()
        for parameter in (p for p in loss.parameters() if p.requires_grad):
            assert parameter.grad is None or (parameter.grad == 0).all()

    def test_everything_masked(self) -> None:
        out = make_loss()(make_batch(ratio=1.0))
        assert out["masked_fraction"] == 1 and out["loss_contrastive"] > 0

    @pytest.mark.parametrize(("slices", "length"), [(1, 6), (3, 1), (1, 1)])
    @pytest.mark.parametrize("negatives", ["batch", "sequence"])
    def test_small_batches(self, slices: int, length: int, negatives: str) -> None:
        value, _ = gradients(make_loss(negatives=negatives), make_batch(slices, length, ratio=1.0))
        assert value.isfinite()
        if slices * length == 1 or (negatives == "sequence" and length == 1):
            assert value == 0  # a key has nothing to be told apart from

    def test_accuracies(self) -> None:
        """With the encoder's own latents as keys and no context, all shown observations are told apart."""
        encoder = make_encoder()
        loss = MaskedContrastiveLoss(encoder, nn.Identity(), target_encoder_network=encoder)
        with torch.no_grad():
            encoder.norm.weight.fill_(10.0)
        pixels = torch.randint(256, (2, 4, 3, 16, 16), dtype=torch.uint8)
        zeroed = torch.tensor([[True, False, False, False], [True, False, False, True]])
        masked = zeroed | torch.tensor([[False, True, False, False], [True, False, True, True]])
        query = pixels * ~zeroed[..., None, None, None]
        views = {"query_pixels": query, "key_pixels": pixels, "masked": masked, "zeroed": zeroed}
        out = loss(TensorDict({"mcurl": views}, [2, 4]))
        latents = encoder(query).flatten(0, 1)
        own = (latents @ encoder(pixels).flatten(0, 1).T).argmax(-1).view(2, 4) == torch.arange(8).view(2, 4)
        assert own[~zeroed].all()
        torch.testing.assert_close(out["contrastive_accuracy"], own[masked].float().mean())
        torch.testing.assert_close(out["contrastive_accuracy_zeroed"], own[zeroed].float().mean())
        torch.testing.assert_close(out["masked_fraction"], torch.tensor(5 / 8))


class TestContracts:
    def test_in_evaluation_there_is_no_dropout(self) -> None:
        loss, batch = make_loss(dropout=0.5), make_batch()
        first, second = (loss(batch)["loss_contrastive"] for _ in range(2))
        assert first != second
        loss.eval()
        first, second = (loss(batch)["loss_contrastive"] for _ in range(2))
        assert first == second and not loss.context_network.training
        assert loss.train().context_network.training

    def test_keys(self) -> None:
        loss = make_loss()
        assert loss.in_keys == [("mcurl", "query_pixels"), ("mcurl", "key_pixels"), ("mcurl", "masked")]
        loss.set_keys(query_pixels="q", key_pixels=("views", "k"), masked="hidden", zeroed="blank")
        assert loss.in_keys == ["q", ("views", "k"), "hidden"]
        batch = make_batch()
        views = batch["mcurl"]
        renamed = TensorDict(
            {"q": views["query_pixels"], "views": {"k": views["key_pixels"]}, "hidden": views["masked"]}, [3, 6]
        )
        renamed["blank"] = views["zeroed"]
        value = loss(renamed)["loss_contrastive"]
        loss.set_keys(**{name: ("mcurl", name) for name in ("query_pixels", "key_pixels", "masked", "zeroed")})
        torch.testing.assert_close(value, loss(batch)["loss_contrastive"])
        assert set(loss(batch).keys()) == set(loss.out_keys)
        assert [key for key in loss.out_keys if key.startswith("loss")] == ["loss_contrastive"]
        assert [key for key, value in loss(batch).items() if value.requires_grad] == ["loss_contrastive"]

    def test_dispatch(self) -> None:
        loss = make_loss()
        batch = make_batch()
        views = batch["mcurl"]
        names = {f"mcurl_{name}": views[name] for name in ("query_pixels", "key_pixels", "masked")}
        out = loss(**names)
        assert len(out) == len(loss.out_keys)
        torch.testing.assert_close(out[0], loss(batch)["loss_contrastive"])

    def test_state_dict_and_copies(self) -> None:
        loss, other = make_loss(), make_loss()
        batch = make_batch()
        other.load_state_dict(loss.state_dict())
        for twin in (other, copy.deepcopy(loss)):
            torch.testing.assert_close(twin(batch)["loss_contrastive"], loss(batch)["loss_contrastive"])

    def test_the_callers_modules_are_the_ones_trained(self) -> None:
        encoder, context = make_encoder(), ContextTransformer(8)
        loss = MaskedContrastiveLoss(encoder, context)
        trained = {id(parameter) for parameter in loss.parameters() if parameter.requires_grad}
        assert trained == {id(parameter) for module in (encoder, context) for parameter in module.parameters()}

    def test_autocast(self) -> None:
        loss, batch = make_loss(), make_batch()
        expected = loss(batch)["loss_contrastive"]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = loss(batch)["loss_contrastive"]
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, expected, rtol=0.1, atol=0.1)
        value.backward()

    # Inductor needs a C++ compiler, and a minute. All backends compile the same graph.
    @pytest.mark.parametrize(
        "backend", ["eager", *(pytest.param(b, marks=pytest.mark.slow) for b in ("aot_eager", "inductor"))]
    )
    @pytest.mark.parametrize("with_zeroed", [True, False])
    def test_compile(self, with_zeroed: bool, backend: str) -> None:
        """Values and gradients as in eager mode, in one graph: zeros are encoded one by one then."""
        loss, batch = make_loss(), make_batch()
        if not with_zeroed:
            del batch["mcurl", "zeroed"]
        expected, expected_grads = gradients(loss, batch)
        torch._dynamo.reset()
        compiled = torch.compile(loss, backend=backend, fullgraph=True)
        loss.zero_grad()
        value = compiled(batch)["loss_contrastive"]
        value.backward()
        torch.testing.assert_close(value.detach(), expected, rtol=1e-4, atol=1e-5)
        grads = [parameter.grad for parameter in loss.parameters() if parameter.grad is not None]
        for grad, expected_grad in zip(grads, expected_grads, strict=True):
            torch.testing.assert_close(grad, expected_grad, rtol=1e-3, atol=1e-5)

    def test_compiled_code_sees_a_mask_that_earlier_batches_did_not_have(self) -> None:
        loss = make_loss()
        torch._dynamo.reset()
        compiled = torch.compile(loss, backend="eager", fullgraph=True)
        for masked in (False, True, False, True):
            batch = make_batch()
            if masked:
                batch["collector", "mask"] = torch.ones(batch.shape, dtype=torch.bool)
                batch["collector", "mask"][0, -2:] = False
            expected = loss(batch.copy())
            found = compiled(batch.copy())
            for name in ("loss_contrastive", "masked_fraction"):
                torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)

    def test_compiled_code_has_fixed_shapes(self) -> None:
        """CUDA graphs need them. Rows that are picked by a mask would have a number that differs between batches."""
        operations: list[str] = []

        def record(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
            operations.extend(str(node.target) for node in graph.graph.nodes)
            return graph

        torch._dynamo.reset()
        torch.compile(make_loss(), backend=record, fullgraph=True)(make_batch())
        assert any("conv2d" in name for name in operations)
        assert not any("nonzero" in name for name in operations)

    def test_on_a_stock_buffer(self) -> None:
        """Stacked pixels and TorchRL's own sampler."""
        pipeline = Compose(
            RandomCrop(16, out_keys=[("mcurl", "query_pixels")]),
            RandomCrop(16, out_keys=[("mcurl", "key_pixels")]),
            MaskObservations(0.5, slice_len=5),
        )
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(100),
            sampler=SliceSampler(slice_len=5, traj_key="episode"),
            transform=pipeline,
            batch_size=20,
        )
        pixels = torch.randint(256, (60, 3, 20, 20), dtype=torch.uint8)
        buffer.extend(TensorDict({"pixels": pixels, "episode": torch.arange(60) // 20}, [60]))
        make_loss()(buffer.sample().reshape(4, 5))["loss_contrastive"].backward()


class TestContrastiveLoss:
    def test_against_a_plain_version(self) -> None:
        loss = ContrastiveLoss(make_encoder(), latent_dim=8)
        assert ((loss.bilinear >= 0) & (loss.bilinear < 1)).all()
        query, key = torch.randint(256, (2, 7, 3, 16, 16), dtype=torch.uint8)
        out = loss(TensorDict({"mcurl": {"query_pixels": query, "key_pixels": key}}, [7]))
        logits = loss.encode(query) @ loss.bilinear @ loss.encode_keys(key).T
        expected = nn.functional.cross_entropy(logits, torch.arange(7))
        torch.testing.assert_close(out["loss_contrastive"], expected)
        accuracy = (logits.argmax(1) == torch.arange(7)).float().mean()
        torch.testing.assert_close(out["contrastive_accuracy"], accuracy)
        out["loss_contrastive"].backward()
        assert loss.bilinear.grad.abs().sum() > 0
        assert all(p.grad is not None for p in loss.encoder_network_params.values(True, True))
        assert all(p.grad is None for p in loss.target_encoder_network_params.values(True, True))

    def test_slices_are_a_batch_like_any_other(self) -> None:
        loss = ContrastiveLoss(make_encoder(), latent_dim=8)
        batch = make_batch(ratio=0.0)
        flat = loss(batch.reshape(-1))["loss_contrastive"]
        torch.testing.assert_close(loss(batch)["loss_contrastive"], flat)

    def test_bad_input(self) -> None:
        with pytest.raises(ValueError, match="feature_dim=8; got latent_dim=9"):
            ContrastiveLoss(make_encoder(), latent_dim=9)
        with pytest.raises(KeyError, match="ContrastiveLoss needs .*query_pixels"):
            ContrastiveLoss(make_encoder(), latent_dim=8)(TensorDict({"pixels": torch.zeros(3)}, [3]))


class TestBadInput:
    @pytest.mark.parametrize("name", ["query_pixels", "key_pixels", "masked"])
    def test_missing_keys(self, name: str) -> None:
        batch = make_batch()
        del batch["mcurl", name]
        with pytest.raises(KeyError, match=f"MaskedContrastiveLoss needs .*{name}.*the tensordict has"):
            make_loss()(batch)

    @pytest.mark.parametrize(
        ("name", "value", "match"),
        [
            ("masked", torch.zeros(3, 6), r"must be bool \[3, 6\]; got torch.float32 of shape \(3, 6\)"),
            (
                "masked",
                torch.zeros(3, 6, 2, dtype=torch.bool),
                r"must be bool \[3, 6\]; got torch.bool of shape \(3, 6, 2\)",
            ),
            ("zeroed", torch.zeros(3, 6, dtype=torch.uint8), r"must be bool \[3, 6\]; got torch.uint8"),
            (
                "key_pixels",
                torch.zeros(3, 6, 3, 20, 20, dtype=torch.uint8),
                r"must have one shape, .* \(3, 6, 3, 20, 20\)",
            ),
            ("query_pixels", torch.zeros(3, 6, dtype=torch.uint8), "must have one shape"),
        ],
    )
    def test_wrong_values(self, name: str, value: torch.Tensor, match: str) -> None:
        with pytest.raises(ValueError, match=match):
            make_loss()(make_batch().set(("mcurl", name), value))

    def test_a_flat_batch(self) -> None:
        with pytest.raises(ValueError, match=r"the batch must be \[slices, time\]; got \[18\]: reshape"):
            make_loss()(make_batch().reshape(-1))

    def test_settings(self) -> None:
        with pytest.raises(ValueError, match=r"negatives='all'; choose one of \['batch', 'sequence'\]"):
            make_loss(negatives="all")
        with pytest.raises(ValueError, match=r"reduction='max'; choose one of"):
            make_loss(reduction="max")
        with pytest.raises(ValueError, match="temperature=0; it must be above 0"):
            make_loss(temperature=0)
        with pytest.raises(ValueError, match="latents have feature_dim=8, the context network's 9"):
            MaskedContrastiveLoss(make_encoder(), ContextTransformer(9))
