"""Two ranks learn what one process learns from the whole batch: losses, gradients, updates, priorities, batches."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from torchrl.data import LazyTensorStorage

from mcurl_torchrl import FrameReplayBuffer
from mcurl_torchrl.ranks import ALONE, DistributedRanks, Ranks, join_ranks
from tests import ranks_at_work as work
from tests.objectives.test_tasks import HEADLESS
from tests.two_ranks import on_ranks

CASES: list[tuple[str, dict[str, Any]]] = [
    ("curl", {}),
    ("seq_curl", {}),
    ("mcurl", {}),
    ("mcurl", {"negatives": "sequence"}),
    ("mcurl", {"reduction": "sum"}),
    ("mcurl_actions", {}),
    ("sym_curl", {}),
    ("mlr", {"patch_size": 5, "block_len": 3}),
    ("cpc", {"slow_keys": True}),
    ("cpc", {}),  # keys with gradients, which other ranks' losses have, too
    ("spr", {}),  # with BatchNorm
    (HEADLESS, {}),
]
LEARNERS = [
    ("sac_mcurl", "mcurl"),
    pytest.param("sac_mcurl", "curl", marks=pytest.mark.slow),
    ("rainbow_mcurl", "mcurl"),
    pytest.param("rainbow_mcurl", "spr", marks=pytest.mark.slow),
]


def assert_pairs(found: list[dict[str, tuple[torch.Tensor, torch.Tensor]]], *, apart: tuple[str, ...] = ()) -> None:
    assert len(found) == 2
    for name, (first, whole) in found[0].items():
        if name not in apart:
            torch.testing.assert_close(
                first, whole, rtol=1e-9, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}"
            )
            assert torch.equal(first, found[1][name][0]), f"{name} is not the same on both ranks"


# -- losses ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def losses() -> list[Any]:
    return on_ranks(work.losses_of_tasks, CASES)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[" ".join([name, *given]) for name, given in CASES])
def test_loss_and_gradients_are_those_of_the_whole_batch(losses: list[Any], number: int) -> None:
    assert_pairs([found[number] for found in losses], apart=("masked",))
    names = losses[0][number]
    assert "loss_auxiliary" in names and any(name.startswith("gradient of encoder") for name in names)
    if "masked" in names:
        counts = [found[number]["masked"] for found in losses]
        assert counts[0][0] != counts[1][0], "both ranks have as many hidden places: a mean of means would do"
        assert counts[0][0] + counts[1][0] == counts[0][1]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_padding_counts_on_no_rank(reduction: str) -> None:
    assert_pairs(on_ranks(work.loss_with_padding, reduction))


# -- updates -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("recipe", "algo"), LEARNERS)
def test_updates_are_those_of_the_whole_batch(recipe: str, algo: str) -> None:
    more = ["objective.dropout=0"] if algo == "mcurl" else []
    found = on_ranks(work.updates_of_agents, recipe, algo, *more)
    assert_pairs(found)
    assert ("priorities" in found[0]) == (recipe == "rainbow_mcurl")


def test_each_rank_reads_its_share_of_the_same_draw() -> None:
    shares = on_ranks(work.shares_of_batches)
    for number, pairs in enumerate(zip(*shares, strict=True)):
        for ours, expected in pairs:
            assert len(ours) == (4 if number % 2 == 0 else 6)
            assert set(ours.keys(True, True)) - {"td_error"} == set(expected.keys(True, True)) - {"td_error"}
            for key in expected.keys(True, True):
                assert torch.equal(ours[key], expected[key]), key


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"batch_size": 129}, "batch_size=129 cannot be shared by 2 ranks in equal parts"),
        ({"batch_size": 4, "prefetch": 3}, "prefetch=3 with 2 ranks"),
    ],
)
def test_what_two_ranks_cannot_share_is_refused(options: dict[str, int], reason: str) -> None:
    ranks = Ranks()
    ranks.count = 2
    with pytest.raises(ValueError, match=reason):
        FrameReplayBuffer(storage=LazyTensorStorage(10), ranks=ranks, **options)
    buffer = FrameReplayBuffer(storage=LazyTensorStorage(10), ranks=ranks)
    with pytest.raises(ValueError, match="num_slices=3 cannot be shared by 2 ranks"):
        buffer.slices(num_slices=3, slice_len=4)


# -- the ranks themselves ----------------------------------------------------------------------------------------------


def test_the_first_rank_works_for_all() -> None:
    first, second = on_ranks(work.work_on_first)
    assert first == [100, ("KeyError", "'gone'"), ("Odd", "odd: 7"), 1]
    assert second == [100, ("KeyError", "'gone'"), ("RuntimeError", "Odd: odd: 7"), 1]


def test_ranks_draw_together_and_apart() -> None:
    first, second = on_ranks(work.draw)
    assert first[1:3] == second[1:3] and first[1] != first[2]
    assert first[0] != second[0] and first[3] != second[3]
    torch.manual_seed(1)
    assert [second[0], second[3]] == torch.rand(2).tolist()  # what is drawn together leaves no trace


@pytest.mark.parametrize("how", ["killed", pytest.param("asleep", marks=pytest.mark.slow)])
def test_a_lost_rank_is_named_in_a_sentence(how: str) -> None:
    said, code = on_ranks(work.lose_the_other, how, seconds=60 if how == "killed" else 3)
    assert said.startswith("another rank ended, or did not answer in time (")
    assert code == {"killed": -signal.SIGKILL, "asleep": 3}[how]


def test_alone_nothing_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    assert join_ranks() is ALONE
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert join_ranks() is ALONE
    assert not torch.distributed.is_initialized()
    with pytest.raises(RuntimeError, match="init_process_group"):
        DistributedRanks()


def test_half_of_the_variables_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="RANK=None beside WORLD_SIZE=2"):
        join_ranks()
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ValueError, match="RANK=first"):
        join_ranks()
    assert "MASTER_PORT" not in os.environ
