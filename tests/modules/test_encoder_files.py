"""Files of encoders: written, read, refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mcurl_torchrl import AtariEncoder, PixelEncoder
from mcurl_torchrl.modules import PPOPolicy, load_encoder, save_encoder, start_encoder_from

ENCODERS = [
    lambda: PixelEncoder(9, 20, num_layers=2, num_filters=4, feature_dim=7),
    lambda: AtariEncoder(4, 40, architecture="nature"),
    lambda: AtariEncoder(2, 30, feature_dim=6),
]


@pytest.mark.parametrize("make", ENCODERS)
def test_an_encoder_comes_back(make, tmp_path: Path):
    trained = make()
    file = save_encoder(trained, tmp_path / "new" / "encoder.pt")
    pixels = torch.randint(256, (3, trained.in_channels, trained.image_size, trained.image_size), dtype=torch.uint8)
    again = load_encoder(file)
    assert type(again) is type(trained) and again.settings == trained.settings
    assert torch.equal(again(pixels), trained(pixels))
    other = make()
    assert not torch.equal(other(pixels), trained(pixels))
    start_encoder_from(file, other)
    assert torch.equal(other(pixels), trained(pixels)) and all(value.requires_grad for value in other.parameters())
    start_encoder_from(file, other, frozen=True)
    assert not any(value.requires_grad for value in other.parameters())


def test_what_does_not_fit_is_refused(tmp_path: Path):
    file = save_encoder(PixelEncoder(9, 20, num_layers=2, num_filters=4), tmp_path / "encoder.pt")
    with pytest.raises(ValueError, match="holds a PixelEncoder; the agent has a AtariEncoder"):
        start_encoder_from(file, AtariEncoder(9, 40))
    with pytest.raises(ValueError, match="num_filters=4, not 8"):
        start_encoder_from(file, PixelEncoder(9, 20, num_layers=2, num_filters=8))
    with pytest.raises(FileNotFoundError, match=r"there is no encoder file .*missing\.pt"):
        load_encoder(tmp_path / "missing.pt")
    torch.save({"kind": "Pickle"}, tmp_path / "other.pt")
    (tmp_path / "text.pt").write_text("hello")
    torch.save(PPOPolicy([4, 36, 36], num_actions=2, hidden_dim=4), tmp_path / "code.pt")  # would need to run code
    for name in ("other.pt", "text.pt", "code.pt"):
        with pytest.raises(ValueError, match="is not an encoder file"):
            load_encoder(tmp_path / name)
