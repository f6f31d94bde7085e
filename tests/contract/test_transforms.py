"""TorchRL's requirements for transforms, tested on each of ours. A new transform needs a line in CASES."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import Compose, EnvBase, GymWrapper, ParallelEnv, SerialEnv, Transform, TransformedEnv
from torchrl.envs.utils import check_env_specs

import mcurl_torchrl
from mcurl_torchrl import CenterCrop, EpisodeSliceSampler, MaskObservations, RandomCrop, RandomShift, StackFrames
from mcurl_torchrl.transforms import AugmentedViews, MaskCubes, RandomIntensity
from tests.contract.public_classes import public_classes

PIXELS = (3, 8, 8)


def images(*lead: int) -> torch.Tensor:
    return torch.randint(1, 256, (*lead, *PIXELS), dtype=torch.uint8)


def as_list(make: Callable[..., Transform]) -> Callable[..., Transform]:
    """A maker that takes one key to read and one to write."""
    return lambda read="pixels", written="pixels", **options: make(in_keys=[read], out_keys=[written], **options)


@dataclass(frozen=True)
class Case:
    """How a transform is made, ``make(read, written)``, and where it works."""

    make: Callable[..., Transform]
    draws: bool = True  # random numbers
    in_environments: bool = False
    rows_per_sample: tuple[int, ...] = ()  # the batch dimensions that it takes away
    count: tuple[str, int] | None = None  # an argument that is a whole number, and a value for it


CASES = {
    "AugmentedViews": Case(
        lambda read="pixels", written="pixels": AugmentedViews(RandomCrop(6), in_key=read, out_keys=[written])
    ),
    "CenterCrop": Case(as_list(lambda size=6, **keys: CenterCrop(size, **keys)), False, True, count=("size", 5)),
    "MaskCubes": Case(
        lambda read="pixels", written="pixels", patch_size=4: MaskCubes(
            0.5, patch_size=patch_size, in_key=read, out_key=written
        ),
        count=("patch_size", 2),
    ),
    "MaskObservations": Case(
        lambda read="pixels", written="pixels", **options: MaskObservations(
            0.5, in_key=read, out_key=written, **options
        ),
        count=("slice_len", 4),
    ),
    "RandomCrop": Case(as_list(lambda size=6, **keys: RandomCrop(size, **keys)), True, True, count=("size", 5)),
    "RandomIntensity": Case(as_list(lambda **keys: RandomIntensity(**keys))),
    "RandomShift": Case(
        as_list(lambda margin=1, **keys: RandomShift(margin=margin, **keys)), True, True, (), ("margin", 2)
    ),
    "StackFrames": Case(
        as_list(lambda num_frames=2, **keys: StackFrames(num_frames, **keys)),
        draws=False,
        rows_per_sample=(2,),
        count=("num_frames", 2),
    ),
}
EVERYWHERE = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
IN_ENVIRONMENTS = pytest.mark.parametrize(
    "case",
    [case for case in CASES.values() if case.in_environments],
    ids=[n for n in CASES if CASES[n].in_environments],
)
ONLY_SAMPLED = pytest.mark.parametrize(
    "case",
    [case for case in CASES.values() if not case.in_environments],
    ids=[n for n in CASES if not CASES[n].in_environments],
)


def make_batch(case: Case, *lead: int, key: Any = "pixels") -> TensorDict:
    shape = (*lead, *case.rows_per_sample)
    torch.manual_seed(3)
    return TensorDict({"other": torch.rand(*shape, 2)}, shape).set(key, images(*shape))


def run(transform: Any, batch: TensorDict) -> TensorDict:
    torch.manual_seed(7)
    return transform(batch)


def assert_equal(first: TensorDict, second: TensorDict) -> None:
    assert first.shape == second.shape and set(first.keys(True, True)) == set(second.keys(True, True))
    assert (first == second).all()


def test_no_transform_is_left_out() -> None:
    of_steps = {"WriterColumn"}  # reads no frames; its tests are beside those of several writers
    assert public_classes(Transform, mcurl_torchrl, mcurl_torchrl.transforms) == set(CASES) | of_steps


@EVERYWHERE
class TestAlone:
    def test_its_keys(self, case: Case) -> None:
        transform = case.make("pixels", ("views", "a"))
        assert transform.in_keys == ["pixels"] and transform.out_keys[0] == ("views", "a")
        batch = make_batch(case, 4)
        out = run(transform, batch.copy())
        assert out.shape == (4,)
        assert set(out.keys(True, True)) == {"pixels", "other", *transform.out_keys}

    def test_what_it_reads_stays_as_it_is(self, case: Case) -> None:
        batch = make_batch(case, 4)
        before = batch.clone()
        run(case.make("pixels", ("views", "a")), batch.copy())
        assert torch.equal(batch["pixels"], before["pixels"])

    def test_nested_keys(self, case: Case) -> None:
        plain = run(case.make("pixels", "view"), make_batch(case, 4))["view"]
        nested = case.make(("camera", "left"), ("views", "left"))
        assert torch.equal(run(nested, make_batch(case, 4, key=("camera", "left")))["views", "left"], plain)

    def test_in_compose(self, case: Case) -> None:
        assert_equal(run(Compose(case.make()), make_batch(case, 4)), run(case.make(), make_batch(case, 4)))

    def test_in_a_sequence_of_modules(self, case: Case) -> None:
        sequence = torch.nn.Sequential(case.make())
        assert_equal(run(sequence, make_batch(case, 4)), run(case.make(), make_batch(case, 4)))

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), lambda x: x.clone()])
    def test_copies_do_the_same(self, case: Case, duplicate: Callable) -> None:
        twin = duplicate(case.make())
        assert_equal(run(twin, make_batch(case, 4)), run(case.make(), make_batch(case, 4)))
        assert twin.container is None

    def test_the_same_seed_gives_the_same_and_another_seed_another(self, case: Case) -> None:
        first, again = (run(case.make(), make_batch(case, 20))["pixels"] for _ in range(2))
        assert torch.equal(first, again)
        batch = make_batch(case, 20)
        torch.manual_seed(8)
        assert torch.equal(case.make()(batch)["pixels"], first) == (not case.draws)

    def test_its_state(self, case: Case) -> None:
        transform = case.make()
        transform.load_state_dict(transform.state_dict())
        assert_equal(run(transform, make_batch(case, 4)), run(case.make(), make_batch(case, 4)))

    def test_a_missing_key(self, case: Case) -> None:
        batch = make_batch(case, 4, key="image")
        with pytest.raises(
            KeyError, match=f"{type(case.make()).__name__} needs 'pixels'; the tensordict has .*'image'"
        ):
            run(case.make(), batch.copy())
        tolerant = case.make()
        tolerant.set_missing_tolerance(True)
        out = run(tolerant, batch.copy())
        assert set(out.keys(True, True)) == {"image", "other"} and out.shape == (4,)

    @pytest.mark.parametrize("lead", [(0,), (3, 0), (0, 4), (), (2, 3)])
    def test_batches_of_any_shape(self, case: Case, lead: tuple[int, ...]) -> None:
        out = run(case.make("pixels", "view"), make_batch(case, *lead))
        some = run(case.make("pixels", "view"), make_batch(case, 1))
        assert out.shape == lead
        assert out["view"].shape == (*lead, *some["view"].shape[1:]) and out["view"].dtype == some["view"].dtype

    def test_counts_of_numpy(self, case: Case) -> None:
        if case.count is None:
            return
        name, value = case.count
        expected = run(case.make(**{name: value}), make_batch(case, 4))
        assert_equal(run(case.make(**{name: np.int64(value)}), make_batch(case, 4)), expected)
        with pytest.raises(TypeError, match=f"{name}={float(value)}; it must be a whole number"):
            case.make(**{name: float(value)})

    def test_it_can_be_printed(self, case: Case) -> None:
        assert type(case.make()).__name__ in repr(case.make())

    def test_there_is_nothing_to_undo(self, case: Case) -> None:
        batch = make_batch(case, 4)
        assert_equal(case.make().inv(batch.clone()), batch)

    def test_in_a_replay_buffer(self, case: Case) -> None:
        rows = TensorDict({"pixels": images(20), "step": torch.arange(20), "episode": torch.zeros(20)}, [20])
        sampler = None
        if case.rows_per_sample:
            frames = case.rows_per_sample[0]
            sampler = EpisodeSliceSampler(slice_len=4, num_frames=frames, traj_key="episode", step_key="step")
        made = case.make("pixels", ("views", "a"))
        for transform in (made, Compose(made.clone())):
            buffer = TensorDictReplayBuffer(
                storage=LazyTensorStorage(20),
                transform=transform,
                batch_size=8,
                **({"sampler": sampler} if sampler else {}),
            )
            buffer.extend(rows)
            batch = buffer.sample()
            assert batch.shape == (8,) and batch["views", "a"].shape[0] == 8
            assert torch.equal(batch["pixels"], rows["pixels"][batch["step"]])


@pytest.mark.parametrize("name", ["CenterCrop", "RandomCrop", "RandomShift", "StackFrames"])
def test_one_key_may_be_a_string(name: str) -> None:
    made = {"in_keys": "pixels", "out_keys": "view"}
    size = () if name == "RandomShift" else (2,)
    transform = getattr(mcurl_torchrl, name)(*size, **made)
    assert transform.in_keys == ["pixels"] and transform.out_keys == ["view"]


class Pictures(gym.Env):
    """Shows noise, from a seed."""

    observation_space = gym.spaces.Dict({"pixels": gym.spaces.Box(0, 255, PIXELS, np.uint8)})
    action_space = gym.spaces.Discrete(2)

    def observe(self) -> dict[str, np.ndarray]:
        return {"pixels": self.np_random.integers(256, size=PIXELS, dtype=np.uint8)}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action: int) -> tuple:
        return self.observe(), 1.0, False, False, {}


def make_env() -> EnvBase:
    return GymWrapper(Pictures())


def make_transformed(case: Case) -> EnvBase:
    return TransformedEnv(make_env(), case.make("pixels", "view"))


@IN_ENVIRONMENTS
class TestInEnvironments:
    def check(self, env: EnvBase) -> None:
        try:
            check_env_specs(env)
            rollout = env.rollout(3)
            for key in ("view", ("next", "view")):
                assert rollout[key].shape == (*env.batch_size, 3, *env.observation_spec["view"].shape[-3:])
                assert rollout[key].dtype == env.observation_spec["view"].dtype
            assert rollout["pixels"].shape == (*env.batch_size, 3, *PIXELS)
        finally:
            env.close()

    def test_one(self, case: Case) -> None:
        self.check(make_transformed(case))

    def test_in_compose(self, case: Case) -> None:
        self.check(TransformedEnv(make_env(), Compose(case.make("pixels", "view"))))

    def test_around_a_batch(self, case: Case) -> None:
        self.check(TransformedEnv(SerialEnv(2, make_env), case.make("pixels", "view")))

    def test_inside_a_batch(self, case: Case) -> None:
        self.check(SerialEnv(2, functools.partial(make_transformed, case)))

    def test_in_processes(self, case: Case) -> None:
        made = functools.partial(make_transformed, case)
        self.check(TransformedEnv(ParallelEnv(2, made, mp_start_method="fork"), case.make("pixels", "again")))

    def test_its_spec_alone(self, case: Case) -> None:
        spec = make_env().observation_spec
        changed = case.make("pixels", "view").transform_observation_spec(spec.clone())
        assert changed["pixels"] == spec["pixels"]
        assert changed["view"].is_in(case.make("pixels", "view")(TensorDict({"pixels": images()}))["view"])
        with pytest.raises(KeyError, match=r"needs 'image'; the environment has \['pixels'\]"):
            case.make("image", "view").transform_observation_spec(spec.clone())
        tolerant = case.make("image", "view")
        tolerant.set_missing_tolerance(True)
        assert set(tolerant.transform_observation_spec(spec.clone()).keys()) == {"pixels"}


@ONLY_SAMPLED
def test_the_others_refuse_environments(case: Case) -> None:
    with pytest.raises(RuntimeError, match="environment"):
        TransformedEnv(make_env(), case.make("pixels", "view")).reset()
