"""The private names of TorchRL that the frame replay uses: all are used in one module, and all still exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer, TensorStorage

from mcurl_torchrl.replay import torchrl_internals as internals

ADAPTER = Path(internals.__file__)
MODULES = sorted(ADAPTER.parent.glob("*.py"))


def make_buffer(capacity: int = 4, **options) -> TensorDictReplayBuffer:
    """Makes a buffer of TorchRL's own that was written and sampled."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=2, **options)
    buffer.extend(TensorDict({"obs": torch.arange(3)}, [3]))
    return buffer


def private_names(source: str) -> set[str]:
    """Lists the private attributes that a module reads or sets, on whatever object."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    return {node.attr for node in nodes if node.attr.startswith("_") and not node.attr.startswith("__")}


def defined_names(source: str) -> set[str]:
    """Lists the methods that a module defines and the attributes that it sets on ``self``."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return names


def of_torchrl() -> set[str]:
    """Lists the private attributes of TorchRL's buffers, storages, samplers and writers."""
    buffer = make_buffer(prefetch=1)
    parts = (buffer, buffer.storage, buffer.sampler, buffer.writer)
    return {name for part in parts for name in dir(part) if name.startswith("_") and not name.startswith("__")}


@pytest.mark.parametrize("name", sorted(private_names(ADAPTER.read_text())))
def test_torchrl_still_has(name: str) -> None:
    assert name in of_torchrl(), f"TorchRL has no {name} any more: mend {ADAPTER.name}"


@pytest.mark.parametrize("path", [path for path in MODULES if path != ADAPTER], ids=lambda path: path.name)
def test_no_other_module_uses_what_is_private(path: Path) -> None:
    source = path.read_text()
    own = set().union(*(defined_names(module.read_text()) for module in MODULES if module != ADAPTER))
    used = private_names(source) & of_torchrl() - own
    assert not used, f"{path.name} uses {sorted(used)} of TorchRL; go through {ADAPTER.name}"


def test_the_tensors_of_a_storage() -> None:
    buffer = make_buffer()
    stored = internals.stored(buffer.storage)["obs"]
    assert len(stored) == 4  # with room for all rows
    stored[1] = 7
    assert buffer[1]["obs"] == 7


def test_the_oldest_row() -> None:
    buffer = make_buffer()
    assert not internals.is_full(buffer.storage) and internals.oldest_time(buffer.storage, 4) == 0
    buffer.extend(TensorDict({"obs": torch.arange(3, 6)}, [3]))  # rows 3, 0, 1
    assert internals.is_full(buffer.storage) and internals.oldest_time(buffer.storage, 4) == 2
    data_set = TensorStorage(TensorDict({"obs": torch.arange(4)}, [4]))
    assert internals.oldest_time(data_set, 4) == 0


def test_a_storage_is_told_of_rows_that_it_did_not_write() -> None:
    storage = LazyTensorStorage(4)
    assert not internals.has_reader(storage)
    internals.allocate(storage, TensorDict({"obs": torch.tensor(0)}))
    before = internals.revision(storage)
    internals.publish(storage, 3, newest=2)
    assert len(storage) == 3 and internals.revision(storage) > before
    internals.publish(storage, 4, newest=1)
    assert internals.oldest_time(storage, 4) == 2
    internals.empty_storage(storage)
    assert len(storage) == 0
    buffer = TensorDictReplayBuffer(storage=storage)
    assert internals.has_reader(storage)
    assert internals.storage_of(buffer.writer) is storage


def test_every_write_changes_the_revision() -> None:
    buffer = make_buffer()
    before = internals.revision(buffer.storage)
    buffer.add(TensorDict({"obs": torch.tensor(9)}))
    after_add = internals.revision(buffer.storage)
    buffer.extend(TensorDict({"obs": torch.arange(2)}, [2]))
    assert before < after_add < internals.revision(buffer.storage)


def test_a_buffer_gives_its_generator_to_its_parts() -> None:
    generator = torch.Generator()
    buffer = make_buffer(generator=generator)
    assert all(internals.generator_of(part) is generator for part in (buffer, buffer.sampler, buffer.storage))
    internals.set_generator(buffer.sampler, None)
    assert internals.generator_of(buffer.sampler) is None


def test_prefetched_batches() -> None:
    buffer = make_buffer(prefetch=2)
    assert internals.prefetch_limit(buffer) == 2
    buffer.sample()
    buffer.synchronize()
    with internals.futures_lock(buffer):
        queue = internals.prefetched(buffer)
        assert len(queue) > 0 and all(future.done() for future in queue)
        internals.check_prefetched(buffer, buffer.state_dict()["_prefetch_state"])
        with pytest.raises(RuntimeError, match="capacity"):
            internals.check_prefetched(buffer, {"version": 1, "capacity": 5, "queue": []})
        internals.clear_prefetched(buffer)
        assert not internals.prefetched(buffer)
    assert not internals.pins_memory(buffer)


def test_two_readers_of_one_storage_share_a_lock() -> None:
    first = make_buffer()
    second = TensorDictReplayBuffer(storage=first.storage)
    internals.share_lock(second, first)
    assert internals.rows_lock(second) is internals.rows_lock(first)
    with internals.locked(first):
        pass
