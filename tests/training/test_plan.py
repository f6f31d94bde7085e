"""Scores on the human scale."""

from __future__ import annotations

import pytest

from mcurl_torchrl.training import human_normalized_score


@pytest.mark.parametrize(
    ("score", "normalized"), [(-20.7, 0.0), (14.6, 1.0), (-3.05, 0.5), (49.9, 2.0), (-38.35, -0.5)]
)
def test_random_is_0_and_human_is_1(score: float, normalized: float):
    assert human_normalized_score(score, random=-20.7, human=14.6) == pytest.approx(normalized)


def test_a_game_where_the_human_does_worse():
    assert human_normalized_score(2.0, random=4.0, human=3.0) == 2.0


def test_no_scale():
    with pytest.raises(ValueError, match="random=7.0 and human=7.0"):
        human_normalized_score(1.0, random=7.0, human=7.0)
