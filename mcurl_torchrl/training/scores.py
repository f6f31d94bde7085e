"""Scores on a scale that many games share."""

from __future__ import annotations

__all__ = ["human_normalized_score"]


def human_normalized_score(score: float, *, random: float, human: float) -> float:
    """Returns a score on the scale where random play is 0 and a human player is 1 (https://arxiv.org/abs/1509.06461).

    ``human`` may be lower than ``random``.

    Raises:
        ValueError: if both are the same.

    Examples:
        >>> from mcurl_torchrl.training import human_normalized_score
        >>> human_normalized_score(16, random=2, human=30)
        0.5
    """
    if human == random:
        raise ValueError(f"random={random} and human={human} are the same; a scale needs two scores that differ")
    return (score - random) / (human - random)
