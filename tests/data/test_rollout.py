"""Rollout storage, filled with identifiable numbers: each lands in its place, and nothing is copied or kept alive."""

import copy
import gc
import weakref

import numpy as np
import pytest
import torch

from hybridrl.data import RolloutStorage
from hybridrl.data.arena import Arena
from hybridrl.data.rollout import RolloutCopy
from hybridrl.envs import Step
from hybridrl.networks import Decision

ROWS, ENVS = 4, 3


INDEX = ((), torch.int64)


def storage(rows=ROWS, *, shape=(2,), dtype=np.float32, action=INDEX):
    return RolloutStorage(rows, ENVS, observation_shape=shape, observation_dtype=dtype, action=action)


def numbers(field, row, *shape):
    """Field, row, environment and element can each be read off: 1000 field + 100 row + 10 environment + element."""
    base = 1000 * field + 100 * row + 10 * np.arange(ENVS)
    return (base.reshape(ENVS, *[1] * len(shape)) + np.arange(int(np.prod(shape))).reshape(shape)).astype(np.float32)


def flags(field, row):
    return (np.arange(ENVS) + row + field) % 3 == 0


def write(into, row, *, shape=(2,), action=INDEX):
    columns = (numbers(2, row, *action[0]), numbers(3, row), numbers(4, row))
    decision = Decision(*map(torch.from_numpy, columns))
    decision = decision._replace(action=decision.action.type(action[1]))
    step = Step(numbers(9, row, *shape), numbers(5, row), flags(0, row), flags(1, row), flags(2, row), None)
    assert into.write(numbers(1, row, *shape), decision, step) == row
    into.write_next_value(row, torch.from_numpy(numbers(6, row)))


def stacked(rows, field, *shape):
    return torch.from_numpy(np.stack([numbers(field, row, *shape) for row in range(rows)]))


@pytest.mark.parametrize(
    ("shape", "action"),
    [((2,), INDEX), ((), ((2,), torch.float32)), ((2, 3), ((1,), torch.float32)), ((2,), ((3,), torch.int64))],
)
def test_every_number_lands_in_its_place(shape, action):
    into = storage(shape=shape, action=action)
    for row in range(ROWS):
        write(into, row, shape=shape, action=action)
    rollout = into.rollout()
    assert len(rollout) == ROWS
    assert torch.equal(rollout.observation, stacked(ROWS, 1, *shape))
    assert torch.equal(rollout.action, stacked(ROWS, 2, *action[0]).type(action[1]))
    for field, name in ((3, "log_prob"), (4, "value"), (5, "reward"), (6, "next_value")):
        assert torch.equal(getattr(rollout, name), stacked(ROWS, field)), name
    for field, name in enumerate(("terminated", "truncated", "valid")):
        expected = torch.from_numpy(np.stack([flags(field, row) for row in range(ROWS)]))
        assert torch.equal(getattr(rollout, name), expected), name


def test_dtypes_are_the_fields():
    rollout = storage().rollout()
    assert rollout.action.dtype == torch.int64
    assert {x.dtype for x in (rollout.log_prob, rollout.value, rollout.next_value, rollout.reward)} == {torch.float32}
    assert {x.dtype for x in (rollout.terminated, rollout.truncated, rollout.valid)} == {torch.bool}
    assert storage(action=((2,), torch.float32)).rollout().action.dtype == torch.float32


@pytest.mark.parametrize(("dtype", "stored"), [(np.uint8, torch.uint8), (np.float32, torch.float32)])
def test_observations_are_stored_in_their_own_dtype(dtype, stored):
    shape = (4, 84, 84)
    into = storage(2, shape=shape, dtype=dtype)
    image = np.random.default_rng(0).integers(256, size=(ENVS, *shape)).astype(dtype)
    zero = torch.zeros(ENVS)
    no = np.zeros(ENVS, bool)
    into.write(image, Decision(zero.long(), zero, zero), Step(image, zero.numpy(), no, no, ~no, None))
    rollout = into.rollout()
    assert rollout.observation.dtype == stored
    assert np.array_equal(rollout.observation[0].numpy(), image)
    pixels = 2 * ENVS * 4 * 84 * 84 * np.dtype(dtype).itemsize
    assert pixels <= into.nbytes < pixels + 8 * 128  # the other eight fields are one line of 64 bytes each, or two


def test_a_part_of_the_rows_is_a_rollout_of_that_many():
    into = storage()
    for row in range(2):
        write(into, row)
    rollout = into.rollout()
    assert len(rollout) == 2
    assert {len(getattr(rollout, name)) for name in rollout.__slots__} == {2}
    assert torch.equal(rollout.observation, stacked(2, 1, 2))


def test_rollouts_are_views_in_the_one_arena():
    into = storage()
    write(into, 0)
    rollout = into.rollout()
    low = into.arena.block.data_ptr()
    high = low + into.nbytes
    assert all(low <= getattr(rollout, name).data_ptr() < high for name in rollout.__slots__)
    into.clear()
    assert len(into.rollout()) == 0
    assert rollout.reward[0, 0] == 5000
    write(into, 0)
    into.rollout().reward[0, 0] = -1.0
    assert rollout.reward[0, 0] == -1.0


def test_what_nobody_wrote_shows():
    into = storage()
    write(into, 0)
    no = np.zeros(ENVS, bool)
    zero = torch.zeros(ENVS)
    into.write(numbers(1, 1, 2), Decision(zero.long(), zero, zero), Step(None, zero.numpy(), no, no, ~no, None))
    rollout = into.rollout()
    assert rollout.next_value.isnan().tolist() == [[False] * ENVS, [True] * ENVS]


def test_what_was_observed_may_change_afterwards():
    into = storage()
    reused = np.ones((ENVS, 2), np.float32)
    zero, no = torch.zeros(ENVS), np.zeros(ENVS, bool)
    into.write(reused, Decision(zero.long(), zero, zero), Step(reused, zero.numpy(), no, no, ~no, None))
    reused[:] = 7.0
    assert (into.rollout().observation == 1.0).all()


def test_one_row_too_many_is_refused_and_names_the_cure():
    into = storage()
    for row in range(ROWS):
        write(into, row)
    with pytest.raises(IndexError, match=r"all 4 rows are written: call clear\(\) after each rollout, or ask for more"):
        write(into, ROWS)
    into.clear()
    write(into, 0)


@pytest.mark.parametrize(("rows", "num_envs"), [(0, 1), (1, 0)])
def test_a_storage_for_nothing_is_refused(rows, num_envs):
    with pytest.raises(ValueError, match=f"rows={rows}, num_envs={num_envs}: expected at least 1 of each"):
        RolloutStorage(rows, num_envs, observation_shape=(2,), observation_dtype=np.float32, action=INDEX)


def test_no_graph_is_stored_or_kept_alive():
    """Each part of a decision carries the graph in turn, and so does the next value."""
    into = storage(action=((2,), torch.float32))
    step = Step(None, np.zeros(ENVS, np.float32), *(np.zeros(ENVS, bool) for _ in range(3)), None)
    graphs = []
    for part in range(4):
        weight = torch.ones((), requires_grad=True)
        shapes = ((ENVS, 2), (ENVS,), (ENVS,), (ENVS,))
        made = [torch.ones(shape) * weight if i == part else torch.ones(shape) for i, shape in enumerate(shapes)]
        row = into.write(np.zeros((ENVS, 2), np.float32), Decision(*made[:3]), step)
        into.write_next_value(row, made[3])
        graphs.append(weakref.ref(weight))
        del weight, made
    gc.collect()
    assert [graph() for graph in graphs] == [None] * 4
    rollout = into.rollout()
    assert not any(getattr(rollout, name).requires_grad for name in rollout.__slots__)
    assert (rollout.action == 1.0).all()


class Marked:
    """An event of a device that reads until it is waited for."""

    def __init__(self, log):
        self.log = log

    def record(self):
        self.log.append("recorded")

    def synchronize(self):
        self.log.append("waited")


def test_nothing_is_overwritten_before_the_copy_of_it_has_ended():
    """C68."""
    log = []
    into = storage()
    reader = RolloutCopy(into, torch.device("cpu"), event=lambda: Marked(log))
    write(into, 0)
    assert torch.equal(reader.fill().reward, into.rollout().reward)
    assert log == ["recorded"]
    into.clear()
    assert log == ["recorded", "waited"]
    into.clear()
    assert log == ["recorded", "waited"]


def test_a_copy_runs_beside_the_host_only_out_of_page_locked_memory(monkeypatch):
    """C68: from elsewhere, to the host say, it could be read too early."""
    asked = []
    real = Arena.copy_
    monkeypatch.setattr(
        Arena, "copy_", lambda self, source, *, non_blocking=False: asked.append(non_blocking) or real(self, source)
    )
    into = storage()
    reader = RolloutCopy(into, torch.device("cpu"), event=lambda: Marked([]))
    reader.fill()
    into.arena.pinned = True
    reader.fill()
    assert asked == [False, True]


def test_a_copied_copy_follows_the_copied_storage():
    into = storage()
    pair = (into, RolloutCopy(into, torch.device("cpu"), event=lambda: Marked([])))
    for twin, follower in (copy.deepcopy(pair), copy.deepcopy(pair[::-1])[::-1]):
        assert follower.storage is twin
        write(twin, 0)
        assert torch.equal(follower.fill().reward, twin.rollout().reward)
    assert into.written == 0
