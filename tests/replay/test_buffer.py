"""FrameReplayBuffer: its samples of known steps, prefetching threads, and refusals."""

from __future__ import annotations

import re
import threading

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage, LazyTensorStorage, ListStorage, SliceSampler
from torchrl.envs import Transform

from mcurl_torchrl import FrameReplayBuffer, PrioritizedTransitionSampler
from mcurl_torchrl.replay.windows import Rows
from tests.replay.episodes import frames_of, make_buffer, make_episode, make_episodes, numbers_in


class TestByHand:
    """Small cases whose answer can be written down."""

    def test_a_truncated_episode_bootstraps_from_its_true_last_frame(self) -> None:
        buffer = make_buffer(num_frames=2, batch_size=200)
        buffer.extend(make_episode(3, first=10))
        assert len(buffer) == 4
        batch = buffer.sample()
        last = batch[batch["step"] == 2]
        assert len(last)
        assert (numbers_in(last["next", "pixels"]) == torch.tensor([12, 13])).all()
        assert last["next", "truncated"].all() and last["next", "done"].all() and not last["next", "terminated"].any()
        first = batch[batch["step"] == 0]
        assert (numbers_in(first["pixels"]) == torch.tensor([10, 10])).all()
        assert not first["next", "done"].any()

    @pytest.mark.parametrize("terminated", [False, True])
    def test_n_step_returns_stop_at_the_end(self, terminated: bool) -> None:
        buffer = make_buffer(n_step=3, gamma=0.5, batch_size=300)
        buffer.extend(make_episode(4, first=1, terminated=terminated))
        buffer.extend(make_episode(5, first=100))  # nothing of it may leak in
        batch = buffer.sample()
        batch = batch[batch["trajectory"] == 0]
        expected = {0: 1 + 2 / 2 + 3 / 4, 1: 2 + 3 / 2 + 4 / 4, 2: 3 + 4 / 2, 3: 4.0}
        assert set(batch["step"].tolist()) == set(expected)
        for step, value in expected.items():
            rows = batch[batch["step"] == step]
            assert (rows["next", "reward"] == value).all()
            assert (rows["steps_to_next_obs"] == min(3, 4 - step)).all()
            assert (numbers_in(rows["next", "pixels"]) == 1 + step + min(3, 4 - step)).all()
            assert (rows["next", "terminated"] == (terminated and step > 0)).all()
            assert (rows["next", "truncated"] == (not terminated and step > 0)).all()

    def test_a_step_can_be_drawn_once_its_n_later_rows_exist(self) -> None:
        buffer = make_buffer(n_step=3, batch_size=100)
        episode = make_episode(5, ended=False)
        for count, step in enumerate(episode.unbind(0), start=1):
            buffer.add(step)
            assert buffer.can_sample() == (count > 3)
        assert set(buffer.sample()["step"].tolist()) == {0, 1}

    def test_torchrl_losses_discount_by_steps_to_next_obs(self) -> None:
        from torchrl.objectives.value import TD0Estimator

        buffer = make_buffer(n_step=3, gamma=0.5, batch_size=50)
        buffer.extend(make_episode(4))
        batch = buffer.sample()
        batch["next", "state_value"] = torch.full((50, 1), 8.0)
        target = TD0Estimator(gamma=0.5, value_network=None).value_estimate(batch)
        expected = batch["next", "reward"] + 0.5 ** batch["steps_to_next_obs"] * 8.0
        torch.testing.assert_close(target, expected)

    def test_slices_contain_the_last_frame_and_mark_it(self) -> None:
        buffer = make_buffer(num_frames=2)
        slices = buffer.slices(num_slices=50, slice_len=4, keys=["pixels", "action", ("next", "reward")])
        buffer.extend(make_episode(4, first=7))
        batch = slices.sample().reshape(50, 4)
        assert set(batch["step"][:, 0].tolist()) == {0, 1}
        assert torch.equal(batch["final"], batch["step"] == 4)
        assert torch.equal(numbers_in(batch["pixels"])[..., 1], batch["step"] + 7)
        assert torch.equal(numbers_in(batch["pixels"])[..., 0], (batch["step"] - 1).clamp(min=0) + 7)
        assert (batch["action"][batch["final"]] == 0).all() and (batch["next", "reward"][batch["final"]] == 0).all()

    def test_an_episode_left_without_an_end_is_closed_as_truncated(self) -> None:
        buffer = make_buffer(batch_size=100)
        buffer.extend(make_episode(3, ended=False))
        buffer.extend(make_episode(3, first=50, ended=False))
        batch = buffer.sample()
        last = batch[(batch["trajectory"] == 0) & (batch["step"] == 2)]
        assert last["next", "truncated"].all() and (numbers_in(last["next", "pixels"]) == 3).all()
        assert not batch["next", "done"][batch["trajectory"] == 1].any()

    @pytest.mark.parametrize("key", [("collector", "traj_ids"), "is_init"])
    def test_the_data_may_say_itself_where_an_episode_begins(self, key) -> None:
        # All frames look the same, so only the key can tell.
        buffer = make_buffer(batch_size=100)
        episode = make_episode(6, ended=False)
        episode["pixels"] = episode["next", "pixels"] = frames_of(torch.zeros(6, dtype=torch.int64))
        episode[key] = torch.tensor([0, 0, 1, 1, 1, 1]) if key != "is_init" else torch.arange(6)[:, None] == 2
        buffer.extend(episode[:4])
        buffer.extend(episode[4:])
        assert len(buffer) == 7
        batch = buffer.sample()
        found = set(zip(batch["trajectory"].tolist(), batch["step"].tolist(), strict=True))
        assert found == {(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)}

    def test_a_batch_longer_than_the_ring_keeps_its_newest_rows(self) -> None:
        buffer = make_buffer(10, batch_size=200)
        buffer.extend(make_episodes([5, 3, 21]))
        assert len(buffer) == 10
        assert set(buffer.sample()["next", "reward"].flatten().tolist()) == set(range(22, 31))

    def test_trajectory_ids_are_never_used_twice(self) -> None:
        buffer = make_buffer(batch_size=100)
        buffer.extend(make_episodes([2, 2]))
        buffer.empty()
        assert len(buffer) == 0 and not buffer.can_sample()
        buffer.extend(make_episode(2))
        assert set(buffer.sample()["trajectory"].tolist()) == {2}

    def test_states_instead_of_pixels(self) -> None:
        buffer = FrameReplayBuffer(
            storage=LazyTensorStorage(100), pixels_key=("obs", "state"), frame_dtype=torch.float32, batch_size=20
        )
        data = make_episode(5).exclude("pixels", ("next", "pixels"))
        states = torch.randn(6, 4)
        data["obs", "state"], data["next", "obs", "state"] = states[:-1], states[1:]
        buffer.extend(data)
        batch = buffer.sample()
        assert torch.equal(batch["obs", "state"], states[batch["step"]])
        assert torch.equal(batch["next", "obs", "state"], states[batch["step"] + 1])

    def test_extra_keys(self) -> None:
        buffer = make_buffer(extra_keys=["skill", ("info", "x")], batch_size=20)
        data = make_episode(5).set("skill", torch.arange(5)).set(("info", "x"), torch.rand(5, 3))
        buffer.extend(data)
        batch = buffer.sample()
        assert torch.equal(batch["skill"], batch["step"])
        assert torch.equal(batch["info", "x"], data["info", "x"][batch["step"]])

    def test_transforms_see_the_batch(self) -> None:
        class Half(Transform):
            def forward(self, tensordict: TensorDict) -> TensorDict:
                return tensordict.set("half", tensordict["pixels"] // 2)

        buffer = make_buffer(transform=Half())
        slices = buffer.slices(num_slices=2, slice_len=3, transform=Half())
        buffer.extend(make_episode(5))
        for batch in (buffer.sample(), slices.sample()):
            assert torch.equal(batch["half"], batch["pixels"] // 2)

    def test_channels_last_in_memory_and_nowhere_else(self) -> None:
        batches = []
        for channels_last in (False, True):
            generator = torch.Generator().manual_seed(0)
            buffer = make_buffer(num_frames=2, channels_last=channels_last, generator=generator)
            slices = buffer.slices(num_slices=2, slice_len=3)
            buffer.extend(make_episode(9))
            images = [buffer.sample()["pixels"], slices.sample()["pixels"], buffer.observations(4)]
            assert all(image.is_contiguous(memory_format=torch.channels_last) == channels_last for image in images)
            assert all(image.is_contiguous() != channels_last for image in images)
            batches.append(images)
        assert all(torch.equal(first, last) for first, last in zip(*batches, strict=True))

    def test_an_episode_joined_in_its_middle_gives_no_stack_that_was_never_seen(self) -> None:
        """As with Collector(set_truncated=True), or when a batch was not stored."""
        buffer = make_buffer(num_frames=3, stacked_input=True, batch_size=200)
        numbers = torch.arange(20, 31)
        stacks = torch.cat([frames_of(numbers[:-2]), frames_of(numbers[1:-1]), frames_of(numbers[2:])], 1)
        steps = make_episode(8, ended=False).set("pixels", stacks[:-1]).set(("next", "pixels"), stacks[1:])
        buffer.extend(steps)
        batch = buffer.sample()
        shown = numbers_in(batch["pixels"])
        assert (shown.diff(dim=1) == 1).all()
        assert set(shown[:, -1].tolist()) == set(range(24, 29))  # 22 and 23 need frames that never came


class TestCost:
    def test_a_frame_is_stored_once(self) -> None:
        buffer = FrameReplayBuffer(storage=LazyTensorStorage(200), num_frames=3)
        stacks = torch.zeros(100, 9, 100, 100, dtype=torch.uint8)
        episode = make_episode(100).set("pixels", stacks).set(("next", "pixels"), stacks)
        buffer.extend(episode)
        data = buffer.storage._storage
        size = sum(value.numel() * value.element_size() for value in data.values(True, True))
        assert size / 200 < 30_000 * 1.002  # a frame of 3x100x100, and a little
        assert 100_000 * size / 200 <= 3.2e9

    def test_the_index_work_does_not_depend_on_the_capacity(self) -> None:
        """Counts the rows that are looked at, which is what takes time."""
        looked_at = []
        for capacity in (500, 20_000):
            buffer = make_buffer(capacity, num_frames=3, batch_size=64)
            slices = buffer.slices(num_slices=16, slice_len=32)
            buffer.extend(make_episodes([249] * (capacity // 200)))
            read = 0
            join = Rows.join

            def counting_join(self, time, column, join=join):
                nonlocal read
                flat = join(self, time, column)
                read += flat.numel()
                return flat

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Rows, "join", counting_join)
                for _ in range(20):
                    buffer.sample()
                    slices.sample()
            looked_at.append(read)
        assert looked_at[1] < 1.1 * looked_at[0]

    def test_other_keys_are_not_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        buffer = make_buffer(extra_keys=["skill"])
        slices = buffer.slices(num_slices=2, slice_len=3)
        buffer.extend(make_episode(5).set("skill", torch.arange(5)))
        read = []
        column = Rows.column
        monkeypatch.setattr(Rows, "column", lambda self, key: read.append(key) or column(self, key))
        slices.sample()
        assert set(read) == {"pixels", "trajectory", "step", "final"}
        assert read.count("pixels") == 1
        read.clear()
        buffer.sample()
        assert [read.count(key) for key in ("pixels", "action", "skill", ("next", "reward"))] == [1] * 4


class TestPrefetch:
    @pytest.mark.parametrize(
        ("storage", "ndim"),
        [
            (LazyTensorStorage, 2),
            (LazyMemmapStorage, 1),
            pytest.param(LazyTensorStorage, 1, marks=pytest.mark.slow),
            pytest.param(LazyMemmapStorage, 2, marks=pytest.mark.slow),
        ],
    )
    def test_no_batch_is_corrupt(self, storage, ndim: int) -> None:
        """Two readers prefetch while a thread writes; every batch is checked against what was ever written.

        Frame, action and reward of a row all carry one number, numbers of a row are consecutive in an episode, and a
        frame is large enough to be caught half-written.
        """
        buffer = FrameReplayBuffer(
            storage=storage(300, ndim=ndim),
            num_frames=2,
            n_step=2,
            gamma=1.0,
            stacked_input=False,
            sampler=PrioritizedTransitionSampler(),
            batch_size=32,
            prefetch=2,
        )
        slices = buffer.slices(num_slices=4, slice_len=8, keys=["pixels", "action"], prefetch=2)
        frame = torch.ones(1, 1, 64, 64, dtype=torch.int32)

        def steps(first: int, length: int) -> TensorDict:
            data = make_episode(length, first)
            numbers = torch.arange(first, first + length + 1, dtype=torch.int32).view(-1, 1, 1, 1)
            frames = (numbers * frame).view(torch.uint8)
            return data.set("pixels", frames[:-1]).set(("next", "pixels"), frames[1:])

        stop, errors = threading.Event(), []

        def write() -> None:
            first = 1
            try:
                while not stop.is_set():
                    length = 5 + first % 23
                    data = steps(first, length)
                    buffer.extend(data if ndim == 1 else torch.stack([data, data]))
                    first += length + 1
            except BaseException as error:
                errors.append(error)

        buffer.extend(steps(1000, 60) if ndim == 1 else torch.stack([steps(1000, 60)] * 2))
        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(600):
                batch = buffer.sample()
                shown = batch["pixels"].contiguous().view(torch.int32).flatten(2)
                assert (shown == shown[..., :1]).all()
                number = batch["action"].squeeze(-1).int()
                assert torch.equal(shown[:, 1, 0], number)
                assert ((shown[:, 0, 0] == number - 1) | ((shown[:, 0, 0] == number) & (batch["step"] == 0))).all()
                following = batch["next", "pixels"].contiguous().view(torch.int32).flatten(2)
                ahead = batch["steps_to_next_obs"].squeeze(-1)
                assert torch.equal(following[:, 1, 0], (number + ahead).int())
                rewards = torch.where(ahead == 2, 2 * number + 1, number)
                assert torch.equal(batch["next", "reward"].squeeze(-1), rewards.float())
                batch["td_error"] = torch.rand(32)
                buffer.update_tensordict_priority(batch)

                windows = slices.sample().reshape(4, 8)
                shown = windows["pixels"].contiguous().view(torch.int32).flatten(3)
                assert (shown == shown[..., :1]).all()
                assert (shown[:, :, 1, 0].diff(dim=1) == 1).all()
                real = ~windows["final"]
                assert torch.equal(shown[:, :, 1, 0][real], windows["action"].squeeze(-1).int()[real])
        finally:
            stop.set()
            writer.join()
            for reader in (slices, buffer):
                reader.shutdown()
        assert not errors

    @pytest.mark.parametrize("prefetch", [None, 1])
    def test_a_transform_that_draws_from_the_buffer(self, tmp_path, prefetch: int | None) -> None:
        """Saving waits for batches whose making needs the buffer."""
        buffer = make_buffer(prefetch=prefetch)
        buffer.extend(make_episode(30))

        class Replace(Transform):
            def forward(self, tensordict: TensorDict) -> TensorDict:
                return tensordict.set("other", buffer.sample()["pixels"][: len(tensordict)])

        slices = buffer.slices(num_slices=2, slice_len=3, prefetch=2, transform=Replace())
        for _ in range(100):
            slices.sample()
            buffer.dumps(tmp_path)
            buffer.loads(tmp_path)
        for reader in (slices, buffer):
            reader.shutdown()

    def test_saving_and_loading_while_prefetching_does_not_hang(self, tmp_path) -> None:
        buffer = make_buffer(prefetch=2)
        views = [buffer.slices(num_slices=2, slice_len=3, prefetch=3) for _ in range(2)]
        buffer.extend(make_episode(30))
        for _ in range(20):
            for reader in (buffer, *views):
                reader.sample()
            buffer.dumps(tmp_path)
            buffer.loads(tmp_path)
        for reader in (*views, buffer):
            reader.shutdown()


class TestBadInput:
    """Every error names the value and what would be right, and leaves the buffer as it was."""

    @pytest.fixture
    def buffer(self) -> FrameReplayBuffer:
        buffer = make_buffer(num_frames=2)
        buffer.extend(make_episode(5))
        return buffer

    def refuses(self, buffer: FrameReplayBuffer, error: type[Exception], match: str, data: TensorDict) -> None:
        rows, cursors = buffer.storage[:].clone(), buffer.writer.state_dict()
        with pytest.raises(error, match=match):
            buffer.extend(data)
        assert len(buffer) == 6
        assert (buffer.storage[:] == rows).all()
        torch.testing.assert_close(buffer.writer.state_dict(), cursors, rtol=0, atol=0)
        buffer.extend(make_episode(3, first=100))
        assert len(buffer) == 10

    def test_float_pixels(self, buffer: FrameReplayBuffer) -> None:
        data = make_episode(3)
        data["pixels"] = data["pixels"].float() / 255
        self.refuses(buffer, ValueError, r"'pixels' must be torch.uint8; got torch.float32; keep pixels uint8", data)
        with pytest.raises(ValueError, match="must be torch.uint8; got torch.float32"):
            make_buffer().extend(data)

    @pytest.mark.parametrize(
        "key",
        ["pixels", "action", ("next", "pixels"), ("next", "reward"), ("next", "terminated"), ("next", "truncated")],
    )
    def test_missing_key(self, buffer: FrameReplayBuffer, key) -> None:
        match = f"a step must have {re.escape(repr(key))}.*it has"
        self.refuses(buffer, KeyError, match, make_episode(3).exclude(key))

    def test_wrong_rank_of_the_batch(self, buffer: FrameReplayBuffer) -> None:
        self.refuses(buffer, ValueError, r"batch size \[time\] .* ndim=1; got \[1, 3\]", make_episode(3)[None])
        with pytest.raises(ValueError, match=r"\[environments, time\] .* ndim=2; got \[3\]"):
            make_buffer(ndim=2).extend(make_episode(3))
        with pytest.raises(ValueError, match=r"add takes steps of batch size \[\] .* got \[3\]"):
            buffer.add(make_episode(3))

    def test_wrong_shapes(self, buffer: FrameReplayBuffer) -> None:
        data = make_episode(3)
        wide = torch.zeros(3, 1, 2, 9, dtype=torch.uint8)
        self.refuses(
            buffer,
            ValueError,
            r"'pixels' is stored as torch.uint8 of shape \(1, 2, 2\) per step; got torch.uint8 of shape \(1, 2, 9\)",
            data.clone().set("pixels", wide).set(("next", "pixels"), wide),
        )

    @pytest.mark.parametrize(
        ("key", "value", "match"),
        [
            (
                ("next", "pixels"),
                torch.zeros(3, 1, 5, 5, dtype=torch.uint8),
                r"shape of 'pixels', \(1, 2, 2\); got \(1, 5, 5\)",
            ),
            ("action", torch.zeros(3, 4), r"'action' is stored as torch.float32 of shape \(1,\) .* \(4,\)"),
            ("action", torch.zeros(3, 1, dtype=torch.int64), "'action' is stored as torch.float32 .* got torch.int64"),
            (("next", "reward"), torch.zeros(3, 2), r"must be one number per step; got shape \(2,\)"),
            (("next", "reward"), torch.zeros(3, 1, dtype=torch.int64), "must be floating point; got torch.int64"),
            (("collector", "traj_ids"), torch.zeros(3, 2), r"must be one number per step; got shape \(2,\)"),
            (("collector", "mask"), torch.tensor([True, True, False]), "some steps are padding.*split_trajs=False"),
            ("action", TensorDict({"a": torch.zeros(3, 1)}, [3]), "'action' must be a tensor; got a TensorDict"),
            (("next", "terminated"), torch.zeros(3, 1), "must be one bool per step; got torch.float32"),
            (("next", "truncated"), torch.zeros(3, 2, dtype=torch.bool), r"must be one bool per step; .* \(2,\)"),
        ],
    )
    def test_wrong_values(self, buffer: FrameReplayBuffer, key, value: torch.Tensor, match: str) -> None:
        self.refuses(buffer, ValueError, match, make_episode(3).set(key, value))

    def test_a_stack_that_does_not_divide(self) -> None:
        with pytest.raises(ValueError, match=r"must be a stack of 3 frames .* got shape \(1, 2, 2\)"):
            make_buffer(num_frames=3, stacked_input=True).extend(make_episode(3))

    def test_what_is_no_stack_of_frames(self) -> None:
        rgb = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
        single = make_episode(3).set("pixels", rgb[:-1]).set(("next", "pixels"), rgb[1:])
        buffer = make_buffer(num_frames=3, stacked_input=True)
        with pytest.raises(ValueError, match="is not 'pixels' moved on by one frame.*give stacked_input=False"):
            buffer.extend(single)
        newest_first = torch.stack([rgb[2:, 0], rgb[1:-1, 0], rgb[:-2, 0]], 1)
        with pytest.raises(ValueError, match="newest last"):
            buffer.extend(make_episode(1).set("pixels", newest_first[:1]).set(("next", "pixels"), newest_first[1:]))
        assert len(buffer) == 0

    @pytest.mark.parametrize(("ours", "theirs"), [("repeat", "zeros"), ("zeros", "repeat")])
    def test_another_padding_than_the_environments(self, ours: str, theirs: str) -> None:
        frame, following = frames_of(torch.tensor([7])), frames_of(torch.tensor([8]))
        older = frame if theirs == "repeat" else torch.zeros_like(frame)
        step = make_episode(1).set("pixels", torch.cat([older, older, frame], 1))
        step.set(("next", "pixels"), torch.cat([older, frame, following], 1))
        with pytest.raises(ValueError, match=f"padded with '{theirs}', but this buffer has padding='{ours}'"):
            make_buffer(num_frames=3, stacked_input=True, padding=ours).extend(step)
        make_buffer(num_frames=3, stacked_input=True, padding=theirs).extend(step)

    def test_another_number_of_environments(self) -> None:
        buffer = make_buffer(ndim=2)
        buffer.extend(torch.stack([make_episode(3)] * 2))
        with pytest.raises(ValueError, match="the buffer has 2 columns, one per environment; got 3"):
            buffer.extend(torch.stack([make_episode(3)] * 3))

    def test_what_is_no_tensordict(self, buffer: FrameReplayBuffer) -> None:
        for write in (buffer.extend, buffer.add):
            with pytest.raises(TypeError, match="takes a tensordict or a dictionary; got list"):
                write([])
        with pytest.raises(ValueError, match="not be empty"):
            buffer.extend(make_episode(3)[:0])

    def test_slices_longer_than_every_episode(self, buffer: FrameReplayBuffer) -> None:
        with pytest.raises(RuntimeError, match="slice_len=32 rows: the longest run .* has 6 rows"):
            buffer.slices(num_slices=2, slice_len=32).sample()

    def test_nothing_to_draw(self) -> None:
        with pytest.raises(RuntimeError, match="the replay buffer is empty"):
            make_buffer().sample()
        buffer = make_buffer(n_step=5)
        buffer.extend(make_episode(3, ended=False))
        with pytest.raises(RuntimeError, match="no transition can be drawn from 3 rows.*5 later rows.*has 3 rows"):
            buffer.sample()

    def test_keys_that_are_not_stored(self, buffer: FrameReplayBuffer) -> None:
        with pytest.raises(KeyError, match="no tensor under 'velocity'; it holds"):
            buffer.slices(num_slices=1, slice_len=2, keys=["velocity"]).sample()

    def test_slices_only_read(self, buffer: FrameReplayBuffer) -> None:
        slices = buffer.slices(num_slices=1, slice_len=2)
        for write in (slices.add, slices.extend, slices.loads, slices.load_state_dict, slices.dumps, slices.empty):
            with pytest.raises(RuntimeError, match="slices only read"):
                write(make_episode(3))
        with pytest.raises(TypeError, match=r"keys='pixels'; give a list of keys, as in \['pixels'\]"):
            buffer.slices(num_slices=1, slice_len=2, keys="pixels")

    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"num_frames": 0}, "num_frames=0; it must be at least 1"),
            ({"n_step": 0}, "n_step=0; it must be at least 1"),
            ({"gamma": 1.5}, "gamma=1.5; it must be between 0 and 1"),
            ({"padding": "mirror"}, r"padding='mirror'; choose one of \['repeat', 'zeros'\]"),
            ({"capacity": 0}, "max_size=0; an episode of one step takes 2 rows"),
            ({"extra_keys": ["step"]}, "'step' cannot be stored under that name"),
            ({"extra_keys": ["action"]}, "pixels_key, action_key and extra_keys must differ"),
            ({"ndim": 3}, "storage.ndim=3; use 1 for one environment, 2 for a batch of environments"),
        ],
    )
    def test_settings(self, options: dict, match: str) -> None:
        with pytest.raises(ValueError, match=match):
            make_buffer(**options)

    def test_other_parts(self) -> None:
        with pytest.raises(TypeError, match="must be a LazyTensorStorage or a LazyMemmapStorage; got ListStorage"):
            FrameReplayBuffer(storage=ListStorage(10))
        with pytest.raises(TypeError, match=r"got SliceSampler. For slices call .slices\("):
            make_buffer(sampler=SliceSampler(slice_len=3))
        used = make_buffer()
        with pytest.raises(ValueError, match="the storage is in use already"):
            FrameReplayBuffer(storage=used.storage)
        with pytest.raises(ValueError, match="storage.device='auto'; name the device"):
            FrameReplayBuffer(storage=LazyTensorStorage(10, device="auto"))
        with pytest.raises(ValueError, match="serves a buffer already"):
            make_buffer(sampler=used.sampler)
        with pytest.raises(RuntimeError, match="keeps its sampler"):
            used.set_sampler(PrioritizedTransitionSampler())
        with pytest.raises(NotImplementedError, match="is written by one process"):
            used.share()
        with pytest.raises(TypeError, match=r"num_frames=2\.5; it must be a whole number"):
            make_buffer(num_frames=2.5)

    @pytest.mark.parametrize("sampler", [None, PrioritizedTransitionSampler])
    def test_batch_sizes(self, sampler) -> None:
        buffer = make_buffer(sampler=None if sampler is None else sampler(), batch_size=None)
        buffer.extend(make_episode(5))
        for size, error in ((0, ValueError), (-1, ValueError), (2.5, TypeError)):
            with pytest.raises(error, match=f"batch_size={size}"):
                buffer.sample(size)
