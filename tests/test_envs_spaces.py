"""Spaces at the boundary: what the network sees, what the environment receives."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from hybridrl.envs import ActionSpec, ObservationSpec, make
from hybridrl.testing import CountingEnv

ASYMMETRIC = spaces.Box(np.array([-1, 0, 10], np.float32), np.array([1, 5, 20], np.float32))


def received(action_space, actions, **options):
    """Step one environment by each row of `actions`; return what it received."""
    made = []

    def factory():
        made.append(CountingEnv(1000, action_space=action_space))
        return made[-1]

    with make(factory, **options) as environments:
        environments.reset(0)
        for action in actions:
            environments.step(np.asarray(action)[None])
    return made[0].received


@pytest.mark.parametrize(("n", "start"), [(3, -1), (2, 10), (4, 0)])
def test_discrete_start(n, start):
    """C83: the environment gets start..start+n-1 for the network's 0..n-1, each in its action space."""
    space = spaces.Discrete(n, start=start)
    got = received(space, np.arange(n))
    assert [int(action) for action in got] == list(range(start, start + n))
    assert all(space.contains(action) for action in got)
    spec = ActionSpec.of(space)
    assert spec.from_env(np.array(got)).tolist() == list(range(n))
    warm_up = spec.sample(200, np.random.default_rng(0))
    assert set(warm_up.tolist()) == set(range(n))


def test_scale_is_affine_per_dimension():
    """C73: -1, 0, 1 reach low, middle and high of each dimension, inside the box; the inverse returns."""
    network = np.array([[-1, -1, -1], [0, 0, 0], [1, 1, 1], [-1, 0, 1]], np.float32)
    got = received(ASYMMETRIC, network, bounds="scale")
    np.testing.assert_allclose(got, [[-1, 0, 10], [0, 2.5, 15], [1, 5, 20], [-1, 2.5, 20]], rtol=1e-6)
    assert all(ASYMMETRIC.contains(action) for action in got)
    spec = ActionSpec.of(ASYMMETRIC, "scale")
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (100, 3)).astype(np.float32)
    np.testing.assert_allclose(spec.from_env(spec.to_env(actions)), actions, atol=1e-5)


@pytest.mark.parametrize("bounds", ["scale", "clip"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_action_is_in_the_box(bounds, dtype):
    """C73: whatever the network says, also far outside, the environment's box holds it."""
    rng = np.random.default_rng(1)
    low = rng.uniform(-3, 0, 50).astype(dtype)
    space = spaces.Box(low, low + rng.uniform(0.001, 3, 50).astype(dtype), dtype=dtype)
    spec = ActionSpec.of(space, bounds)
    inputs = np.concatenate([rng.normal(0, 5, (100, 50)), np.ones((1, 50)), -np.ones((1, 50))])
    out = spec.to_env(inputs.astype(np.float32))
    assert out.dtype == dtype
    assert all(space.contains(row) for row in out)


def test_clip_leaves_what_is_inside():
    """C73: "clip" only clips."""
    got = received(ASYMMETRIC, [[0.5, 2, 12], [-9, 9, 9]], bounds="clip")
    np.testing.assert_array_equal(got, np.array([[0.5, 2, 12], [-1, 5, 10]], np.float32))


def test_clip_passes_unbounded_dimensions_through():
    """C73: an unbounded dimension has nothing to clip to; a half-bounded one has one side."""
    space = spaces.Box(np.array([-np.inf, 0], np.float32), np.array([np.inf, np.inf], np.float32))
    got = received(space, np.array([[1e6, -3.0]], np.float32))
    np.testing.assert_array_equal(got, [[1e6, 0.0]])


def test_scale_of_an_unbounded_box_is_refused():
    """C73: there is nothing to scale to; the error names the dimension and the way out."""
    space = spaces.Box(np.array([0, 0], np.float32), np.array([1, np.inf], np.float32))
    with pytest.raises(ValueError, match="dimension 1 of 2 is unbounded: use bounds='clip'"):
        ActionSpec.of(space, "scale")
    with (
        make(lambda: CountingEnv(3, action_space=space)) as environments,
        pytest.raises(ValueError, match="unbounded"),
    ):
        environments.bound_actions("scale")


def test_bounds_can_be_changed_later():
    """A learner may choose the handling after the environments exist."""
    with make(lambda: CountingEnv(9, action_space=ASYMMETRIC)) as environments:
        environments.bound_actions("scale")
        np.testing.assert_allclose(environments.action.to_env(np.ones((1, 3))), [[1, 5, 20]])
        with pytest.raises(ValueError, match="expected 'scale' or 'clip'"):
            environments.bound_actions("squash")


def test_huge_bounds_do_not_overflow():
    """A float32 box whose range exceeds float32's largest number still scales."""
    space = spaces.Box(np.float32(-3e38), np.float32(3e38), (1,))
    out = ActionSpec.of(space, "scale").to_env(np.array([[-1.0], [0.0], [1.0]], np.float32))
    np.testing.assert_allclose(out, [[-3e38], [0], [3e38]], rtol=1e-6)


def test_a_dimension_with_one_value():
    """low == high: the network's number does not matter, and the inverse is finite."""
    spec = ActionSpec.of(spaces.Box(2.0, 2.0, (1,)), "scale")
    assert spec.to_env(np.array([[0.3]], np.float32)).item() == 2.0
    assert np.isfinite(spec.from_env(np.array([[2.0]], np.float32))).all()


def test_multi_dimensional_box_is_flat_for_the_network():
    """C84: Box(10, 10) is 100 numbers for the network, in C order, and (10, 10) for the environment."""
    space = spaces.Box(-1000, 1000, (10, 10))
    spec = ActionSpec.of(space)
    assert (spec.size, spec.shape) == (100, (10, 10))
    (got,) = received(space, np.arange(100, dtype=np.float32)[None])
    np.testing.assert_array_equal(got, np.arange(100).reshape(10, 10))
    np.testing.assert_array_equal(spec.from_env(got[None]), np.arange(100)[None])


def test_float64_at_the_boundary():
    """C39: float64 observations are cast once to float32, said so; the environment gets its own dtype."""
    space = spaces.Box(-1, 1, (3,), np.float64)
    made = []

    def factory():
        made.append(CountingEnv(5, action_space=space, dtype=np.float64))
        return made[-1]

    with make(factory) as environments:
        assert environments.observation.dtype == np.float32
        assert "float64" in environments.observation.note
        assert "stored as float32, the environment's are float64" in environments.description
        assert environments.reset(0).dtype == np.float32
        step = environments.step(np.full((1, 3), 0.25, np.float32))
    assert step.observation.dtype == np.float32
    assert step.reward.dtype == np.float32
    assert made[0].received[0].dtype == np.float64


def test_uint8_stays_uint8():
    """C28: images keep their byte."""
    with make(lambda: CountingEnv(5, dtype=np.uint8), 2) as environments:
        assert environments.observation == ObservationSpec(shape=(1,), dtype=np.dtype(np.uint8))
        assert environments.reset(0).dtype == np.uint8
        assert environments.step(np.zeros(2, np.int64)).observation.dtype == np.uint8
        assert "stored" not in environments.description


class Observing(CountingEnv):
    """A CountingEnv with any observation space."""

    def __init__(self, space):
        super().__init__(5)
        self.observation_space = space

    def _observation(self):
        return self.observation_space.sample()


FLATTENABLE = [
    spaces.Dict({"x": spaces.Box(0, 1, (1,)), "y": spaces.Box(0, 1, (2,))}),
    spaces.Tuple((spaces.Box(0, 1, (1,)), spaces.Discrete(2))),
    spaces.Discrete(3),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(4),
]


@pytest.mark.parametrize("space", FLATTENABLE, ids=str)
def test_other_observations_are_refused_with_a_wrapper_that_works(space):
    """C14: not a Box, so refused, naming FlattenObservation; and with it, accepted."""
    with pytest.raises(ValueError, match="FlattenObservation"):
        make(lambda: Observing(space))
    with make(lambda: gymnasium.wrappers.FlattenObservation(Observing(space)), 2) as environments:
        assert environments.reset(0).shape == (2, spaces.flatdim(space))


def test_unflattenable_observations_are_refused():
    """Spaces that FlattenObservation cannot flatten are not told to use it."""
    with pytest.raises(ValueError, match="TransformObservation") as error:
        make(lambda: Observing(spaces.Sequence(spaces.Discrete(2))))
    assert "FlattenObservation" not in str(error.value)


MULTI = [
    (spaces.MultiDiscrete([2, 3]), (2, 3)),
    (spaces.MultiDiscrete([4, 4, 4], start=[-1, 0, 10]), (4, 4, 4)),
    (spaces.MultiDiscrete([[1, 2, 3], [3, 1, 2]], start=[[5, 0, -3], [0, 0, 1]]), (1, 2, 3, 3, 1, 2)),
    (spaces.MultiDiscrete([3], dtype=np.int8, start=[-128]), (3,)),
    (spaces.MultiDiscrete([200, 5], dtype=np.uint8, start=[50, 0]), (200, 5)),
    (spaces.MultiDiscrete([1, 1]), (1, 1)),
    (spaces.MultiDiscrete([1]), (1,)),
    (spaces.MultiBinary(1), (2,)),
    (spaces.MultiBinary(3), (2, 2, 2)),
    (spaces.MultiBinary((2, 3)), (2,) * 6),
]


@pytest.mark.parametrize(("space", "sizes"), MULTI, ids=str)
def test_several_discrete_actions_at_once(space, sizes):
    """Every action of every dimension, and random ones: in the environment's shape, dtype and range, and back."""
    spec = ActionSpec.of(space)
    assert (spec.kind, spec.size, spec.sizes) == ("multi-discrete", len(sizes), sizes)
    actions = np.arange(max(sizes))[:, None] % np.array(sizes)
    actions = np.concatenate([actions, spec.sample(50, np.random.default_rng(0))])
    before = actions.copy()
    got = received(space, actions)
    assert all(type(action) is np.ndarray and action.dtype == space.dtype for action in got)
    assert all(space.contains(action) for action in got)
    start = getattr(space, "start", np.zeros(space.shape, int))
    np.testing.assert_array_equal(got, actions.reshape(-1, *space.shape) + np.asarray(start, np.int64))
    np.testing.assert_array_equal(spec.from_env(np.array(got)), actions)
    assert spec.from_env(np.array(got)).dtype == np.int64
    spec.to_env(actions)[:] = 0
    np.testing.assert_array_equal(actions, before)


def test_random_actions_cover_every_dimension():
    """Random warm-up: uniform in each dimension, and independent."""
    drawn = ActionSpec.of(spaces.MultiDiscrete([2, 3, 1])).sample(6000, np.random.default_rng(0))
    assert (drawn.shape, drawn.dtype) == ((6000, 3), np.int64)
    pairs = np.bincount(drawn[:, 0] * 3 + drawn[:, 1], minlength=6)
    np.testing.assert_allclose(pairs, 1000, rtol=0.1)
    assert (drawn[:, 2] == 0).all()


def test_several_actions_need_their_own_shape():
    """One index for each environment is one dimension short."""
    with make(lambda: CountingEnv(9, action_space=spaces.MultiDiscrete([2, 2])), 2) as environments:
        environments.reset(0)
        with pytest.raises(ValueError, match=r"\(2,\): expected \(2, 2\)"):
            environments.step(np.zeros(2, np.int64))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 9, (2,), np.int32),
        spaces.Dict({"a": spaces.Discrete(2)}),
        spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(2))),
    ],
    ids=str,
)
def test_other_actions_are_refused(space):
    """Integer boxes and structures: one line with the wrapper to use."""
    with pytest.raises(ValueError, match="TransformAction") as error:
        make(lambda: CountingEnv(5, action_space=space))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("bounds", ["scale", "clip"])
def test_random_actions_cover_the_box(bounds):
    """Random warm-up: uniform over each dimension's own bounds, in the network's terms."""
    spec = ActionSpec.of(ASYMMETRIC, bounds)
    actions = spec.to_env(spec.sample(4000, np.random.default_rng(0)))
    np.testing.assert_allclose(actions.mean(axis=0), [0, 2.5, 15], atol=0.25)
    np.testing.assert_allclose(actions.std(axis=0), np.array([2, 5, 10]) / np.sqrt(12), rtol=0.05)


@pytest.mark.parametrize("start", [0, 3])
def test_what_an_environment_does_to_its_actions_stays_there(start):
    actions = np.array([0, 1])
    ActionSpec.of(spaces.Discrete(2, start=start)).to_env(actions)[:] = 99
    assert actions.tolist() == [0, 1]
