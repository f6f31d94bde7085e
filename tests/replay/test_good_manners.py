"""Warnings and errors of the buffer about data that does not fit; a refused write changes nothing."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torchrl.data import LazyTensorStorage, ReplayBufferEnsemble, TensorDictReplayBuffer
from torchrl.data.replay_buffers.writers import TensorDictRoundRobinWriter
from torchrl.envs.transforms import Compose, VecNorm

from mcurl_torchrl import FrameReplayBuffer, PrioritizedTransitionSampler
from mcurl_torchrl.replay import SumTree, TransitionSampler
from tests.replay.episodes import make_buffer, make_episode, make_episodes, numbers_in


@pytest.mark.parametrize("n_step", [1, 3])
def test_extra_keys_under_next_are_those_of_the_last_step(n_step: int) -> None:
    buffer = make_buffer(100, n_step=n_step, extra_keys=["seen", ("next", "life_lost"), ("info", "x")], batch_size=100)
    episode = make_episode(20)
    for key in ("seen", ("next", "life_lost"), ("info", "x")):
        episode[key] = torch.arange(20)
    buffer.extend(episode)
    batch = buffer.sample()
    last = batch["step"] + batch["steps_to_next_obs"].squeeze(-1) - 1
    assert torch.equal(batch["next", "life_lost"], last)
    assert torch.equal(batch["seen"], batch["step"]) and torch.equal(batch["info", "x"], batch["step"])
    assert (last > batch["step"]).any() == (n_step > 1)


class TestFlattenedEnvironments:
    """``data.reshape(-1)`` of ``[environments, time]`` cuts every environment at every batch."""

    DATA = torch.stack([make_episode(20, ended=False), make_episode(20, first=100, ended=False)])

    def test_warns_once_with_what_to_write_instead(self) -> None:
        buffer = make_buffer(200)
        with pytest.warns(UserWarning, match=r"reshape\(-1\).*LazyTensorStorage\(max_size, ndim=2\)"):
            buffer.extend(self.DATA[:, :5].reshape(-1))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            buffer.extend(self.DATA[:, 5:10].reshape(-1))

    def test_no_warning_for_whole_data(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            batched, single = make_buffer(200, ndim=2), make_buffer(200)
            for first in (0, 5):
                batched.extend(self.DATA[:, first : first + 5])
            single.extend(make_episodes([3, 4]))
            single.extend(make_episode(4, first=50, ended=False))
            single.extend(make_episode(4, first=90))  # a new collector


def test_dropped_keys_are_named_once() -> None:
    buffer = make_buffer(100)
    episode = make_episode(6)
    episode["end-of-life"], episode["next", "info"] = torch.zeros(6, 1), torch.zeros(6)
    episode["step_count"], episode["next", "done"] = torch.arange(6)[:, None], episode["next", "truncated"]
    with pytest.warns(UserWarning, match=r"drops \[\('next', 'info'\), 'end-of-life'\]; .* extra_keys") as caught:
        buffer.extend(episode[:3])
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer.extend(episode[3:])
        make_buffer(100).extend(make_episode(6))


@pytest.mark.parametrize("cause", ["VecNorm", "resets itself", "restored"])
def test_stacks_that_did_not_move_on_by_one_frame(cause: str) -> None:
    frames = torch.arange(40, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 2, 2, 2)
    step = make_episode(3)
    step["pixels"], step["next", "pixels"] = frames[:3], frames[7:10]
    with pytest.raises(ValueError, match=f"is not 'pixels' moved on by one frame.*{cause}"):
        make_buffer(num_frames=2, stacked_input=True).extend(step)


class TestEnsembles:
    def test_a_frame_replay_is_no_member(self) -> None:
        buffer = make_buffer(100)
        buffer.extend(make_episode(9))
        for member in (buffer, buffer.slices(num_slices=2, slice_len=2)):
            ensemble = ReplayBufferEnsemble(member, member, batch_size=8)
            with pytest.raises(RuntimeError, match=r"serves its FrameReplayBuffer alone.*torch.cat\(\[first.sample"):
                ensemble.sample()

    def test_what_the_error_says_works(self) -> None:
        first, second = make_buffer(100), make_buffer(100)
        first.extend(make_episode(9))
        second.extend(make_episode(9, first=50))
        batch = torch.cat([first.sample(), second.sample()])
        assert (numbers_in(batch["pixels"])[:8] < 10).all() and (numbers_in(batch["pixels"])[8:] >= 50).all()

    def test_a_sampler_of_transitions_in_another_buffer(self) -> None:
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), sampler=TransitionSampler(), batch_size=2)
        buffer.extend(make_episode(4))
        with pytest.raises(RuntimeError, match="this TransitionSampler serves its FrameReplayBuffer alone"):
            buffer.sample()


def test_another_writer_or_storage_is_refused_at_once() -> None:
    buffer = make_buffer(100)
    with pytest.raises(RuntimeError, match="keeps its writer"):
        buffer.set_writer(TensorDictRoundRobinWriter())
    with pytest.raises(RuntimeError, match="keeps its storage"):
        buffer.set_storage(LazyTensorStorage(100))
    buffer.extend(make_episode(4))
    assert len(buffer) == 5


class TestStatesThatDoNotFit:
    """A state that is refused changes nothing: no row, no random number, no prefetched batch."""

    def make(self, **options) -> FrameReplayBuffer:
        options = {"capacity": 50, "prefetch": 2, "sampler": PrioritizedTransitionSampler(), **options}
        buffer = make_buffer(options.pop("capacity"), **options)
        buffer.extend(make_episodes([9, 12]))
        return buffer

    @pytest.mark.parametrize(
        ("other", "match"),
        [
            ({"prefetch": 3}, "capacity 3"),
            ({"capacity": 60}, "room for 60 rows; this buffer for 50"),
            ({"sampler": None}, "alpha"),
            ({"sampler": PrioritizedTransitionSampler(alpha=0.9)}, "alpha=0.9"),
            ({"transform": Compose(VecNorm(in_keys=["pixels"]))}, "its transforms have"),
        ],
        ids=["prefetch", "size", "sampler", "alpha", "transforms"],
    )
    def test_of_another_buffer(self, other: dict, match: str) -> None:
        if "transform" in other:
            state = self.make().state_dict()
            state["_transforms"] = {"0.loc": torch.zeros(1)}
        else:
            state = self.make(**other).state_dict()
        self.check_refused(state, match)

    @pytest.mark.parametrize("part", ["_storage", "_sampler", "_writer", "_transforms"])
    def test_of_which_a_part_is_missing(self, part: str) -> None:
        state = self.make().state_dict()
        del state[part]
        self.check_refused(state, part)

    def test_rows_of_another_shape(self) -> None:
        state = self.make().state_dict()
        state["_storage"]["_storage"]["action"] = torch.zeros(50, 3)
        self.check_refused(state, "it has keys")

    def check_refused(self, state: dict, match: str) -> None:
        buffer, untouched = self.make(), self.make()
        for one in (buffer, untouched):
            one.sample()
            one.synchronize()
        rows = buffer.storage[:].clone()
        queue = [future.result()[0] for future in buffer._prefetch_queue]
        with pytest.raises(ValueError, match=match):
            buffer.load_state_dict(state)
        assert len(queue) == 2
        assert (buffer.storage[:] == rows).all()
        for expected in queue:
            assert (buffer.sample().select(*expected.keys(True, True)) == expected).all()


def test_numbers_of_numpy(tmp_path) -> None:
    buffer = make_buffer(
        np.int64(60), num_frames=np.int64(2), n_step=np.int32(3), batch_size=np.int64(8), prefetch=np.int64(1)
    )
    slices = buffer.slices(num_slices=np.int64(2), slice_len=np.int64(3))
    buffer.extend(make_episode(20))
    assert buffer.sample().shape == (8,) and slices.sample().shape == (6,)
    assert buffer.observations(np.int64(3)).shape[0] == 3
    assert buffer.slices_at(np.array([1, 2]), slice_len=np.int64(3)).shape == (6,)
    buffer.dumps(tmp_path)  # its settings are JSON
    again = make_buffer(60, num_frames=2, n_step=3, batch_size=8, prefetch=1)
    again.loads(tmp_path)
    assert torch.equal(again.sample()["pixels"], buffer.sample()["pixels"])
    assert SumTree(np.int64(3)).size == 3


def test_a_storage_that_does_not_divide_among_its_environments() -> None:
    buffer = make_buffer(100, ndim=2, sampler=PrioritizedTransitionSampler(), batch_size=64)
    data = torch.stack([make_episode(60, first) for first in (0, 1000, 2000)])
    buffer.extend(data)  # 34 rows for each of 3 environments
    assert buffer.sample()["index"].shape == (64, 2)
