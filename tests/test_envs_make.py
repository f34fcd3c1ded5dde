"""Making environments: ids, callables and vector environments, seeds, and the refusals."""

import sys
import textwrap
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from hybridrl.envs import EnvFactory, make, spread_seeds
from hybridrl.testing import CountingEnv


def refusal(*arguments, **options):
    """Return the one line with which `make` refuses."""
    with pytest.raises(ValueError) as error:
        make(*arguments, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def registered():
    """Register ids for one test: registered(id, **spec)."""
    with mock.patch.dict(gym.registry):
        yield gym.register


# Ids


@pytest.mark.parametrize(
    ("env_id", "expected"),
    [
        ("Pendulum-v0", "use 'Pendulum-v1'"),
        ("Pendulum-v1000", "use 'Pendulum-v1'"),
        ("Pendulum", "use 'Pendulum-v1'"),
        ("CartPole-v0", "use 'CartPole-v1' with max_episode_steps=200"),
        ("CartPol-v1", "did you mean 'CartPole-v1'"),
        ("NothingLikeThat-v7", "see gymnasium.pprint_registry()"),
        ("Cart Pole", "malformed"),
        ("no_such_package_here:Env-v0", "cannot import 'no_such_package_here'"),
    ],
)
def test_ids_that_do_not_exist_or_are_retired(env_id, expected):
    """C91: refused, naming the modern call or the nearest ids; no silent upgrade, no warning."""
    message = refusal(env_id)
    assert expected in message
    assert "did you mean 'CartPole-v0'" not in message


def test_the_modern_call_of_a_retired_id_works():
    """C91: what the error advises gives CartPole-v0's episodes of at most 200 steps."""
    with make("CartPole-v1", 2, max_episode_steps=200) as environments:
        assert environments.max_episode_steps == 200


def test_ids_of_a_package_are_registered_by_importing_it(registered, tmp_path, monkeypatch):
    """The form "package:Name-v0" imports the package first."""
    (tmp_path / "hrl_test_package.py").write_text(
        "import gymnasium\ngymnasium.register('InPackage-v0', 'hybridrl.testing:CountingEnv', kwargs={'length': 3})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with make("hrl_test_package:InPackage-v0") as environments:
        assert environments.spec_id == "InPackage-v0"


def test_atari_without_ale_py(monkeypatch):
    """C93: one line with the command that installs what is missing."""
    monkeypatch.setitem(sys.modules, "ale_py", None)
    for env_id in ("ALE/Pong-v5", "PongNoFrameskip-v4"):
        assert 'pip install "hybridrl[atari]"' in refusal(env_id)


def test_atari_is_registered_in_every_process(registered, tmp_path, monkeypatch):
    """C93: the ids exist here, and in a spawned worker that starts with nothing registered."""
    (tmp_path / "ale_py.py").write_text(
        textwrap.dedent("""
            import gymnasium
            gymnasium.register("ALE/Counter-v5", "hybridrl.testing:CountingEnv", kwargs={"length": 3})
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ale_py", raising=False)
    with make("ALE/Counter-v5", 2) as environments:
        assert environments.reset(0).tolist() == [[0], [0]]
    factory = EnvFactory("ALE/Counter-v5")
    with make(AsyncVectorEnv([factory] * 2, context="spawn")) as environments:
        environments.reset(0)
        assert environments.step(np.zeros(2, np.int64)).observation.tolist() == [[1], [1]]
    sys.modules.pop("ale_py", None)


def test_a_missing_dependency_is_one_line(registered):
    """An id that is registered but cannot be made says what is missing."""
    registered("Needing-v0", "no_such_module:Env")
    assert "'Needing-v0' cannot be made here: No module named 'no_such_module'" in refusal("Needing-v0")


# Which implementation


def test_the_batched_implementation_is_used_where_registered():
    """CartPole has one; a single environment, SAME_STEP and batched=False do without, and it is all said."""
    text = "CartPole-v1 x 8, Gymnasium's batched implementation, NEXT_STEP"
    expected = {
        (8, None, None): text,
        (1, None, True): text.replace("8", "1"),
        (1, None, None): "CartPole-v1 x 1, in-process vectorisation, NEXT_STEP",
        (8, None, False): "CartPole-v1 x 8, in-process vectorisation, NEXT_STEP",
        (8, "same_step", None): "CartPole-v1 x 8, in-process vectorisation "
        "(the batched implementation of 'CartPole-v1' knows NEXT_STEP only), SAME_STEP",
    }
    for (num_envs, autoreset, batched), description in expected.items():
        with make("CartPole-v1", num_envs, autoreset=autoreset, batched=batched) as environments:
            assert environments.description == description
            assert isinstance(environments._env, SyncVectorEnv) == ("in-process" in description)


def test_batched_cannot_be_had():
    """batched=True is a demand: an error says why not."""
    assert "no batched implementation of 'Pendulum-v1' is registered" in refusal("Pendulum-v1", 4, batched=True)
    assert "NEXT_STEP only" in refusal("CartPole-v1", 4, batched=True, autoreset="same_step")
    assert "with an id only" in refusal(lambda: CountingEnv(3), 4, batched=True)
    assert "is built already" in refusal(SyncVectorEnv([lambda: CountingEnv(3)]), batched=True)


class Other(gym.vector.VectorEnv):
    """A vector environment with other spaces than CountingEnv's, as one that preprocesses has."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs, length, max_episode_steps=None):
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = spaces.Box(0, 9, (4,)), spaces.Discrete(2)


class Silent(Other):
    """A vector environment that does not say how it resets."""

    metadata = {}  # noqa: RUF012


@pytest.mark.parametrize(
    ("vector_entry_point", "reason"),
    [
        ("no_such_module:Vec", "cannot be imported: No module named 'no_such_module'"),
        (Other, "has other spaces"),
        (Silent, "does not say how it resets"),
    ],
)
def test_an_unusable_batched_implementation(registered, vector_entry_point, reason):
    """It is left aside, said in the description; demanded, it is an error (unless only its spaces differ)."""
    kwargs = {"length": 3}
    registered("Both-v0", CountingEnv, vector_entry_point=vector_entry_point, kwargs=kwargs)
    with make("Both-v0", 2) as environments:
        assert reason in environments.description
        assert isinstance(environments._env, SyncVectorEnv)
    if vector_entry_point is not Other:
        assert reason in refusal("Both-v0", 2, batched=True)


def test_registered_wrappers_rule_out_the_batched_implementation(registered):
    """A batched implementation would ignore them."""
    wrapped = gym.wrappers.TransformReward(gym.make("CartPole-v1"), abs).spec.additional_wrappers
    registered(
        "Wrapped-v0",
        "gymnasium.envs.classic_control.cartpole:CartPoleEnv",
        vector_entry_point="gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv",
        additional_wrappers=wrapped,
    )
    with make("Wrapped-v0", 2) as environments:
        assert "the wrappers registered with 'Wrapped-v0' would not apply" in environments.description


@pytest.mark.parametrize("batched", [True, False])
def test_options_reach_the_environment(batched):
    """max_episode_steps and env_kwargs, whichever the implementation."""
    kwargs = {"sutton_barto_reward": True}
    with make("CartPole-v1", 3, max_episode_steps=4, batched=batched, env_kwargs=kwargs) as environments:
        assert environments.max_episode_steps == 4
        environments.reset(0)
        steps = [environments.step(np.array([0, 1, 0])) for _ in range(4)]
    assert [step.truncated.tolist() for step in steps] == [[False] * 3] * 3 + [[True] * 3]
    assert all((step.reward == 0).all() for step in steps)


def test_max_episode_steps_of_a_callable():
    """The limit wraps what the callable makes, and the shortest limit is reported."""
    with make(lambda: CountingEnv(9), 2, max_episode_steps=3) as environments:
        assert environments.max_episode_steps == 3
        environments.reset(0)
        truncated = [environments.step(np.zeros(2, np.int64)).truncated[0] for _ in range(3)]
        assert truncated == [False, False, True]
    for given, expected in ((None, 500), (50, 50), (1000, 500)):
        with make(lambda: gym.make("CartPole-v1"), 2, max_episode_steps=given) as environments:
            assert environments.max_episode_steps == expected
    with make(lambda: CountingEnv(9)) as environments:
        assert environments.max_episode_steps is None


def test_a_vector_environment_as_it_is():
    """num_envs may be left out or must match; its mode and limit are read from it."""
    for options in ({}, {"num_envs": 2}):
        with make(SyncVectorEnv([lambda: CountingEnv(3)] * 2), **options) as environments:
            assert environments.num_envs == 2
            assert environments.description == "VectorEnv x 2, SyncVectorEnv, NEXT_STEP"
    batched = gym.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point", max_episode_steps=60)
    with make(batched) as environments:
        assert (environments.spec_id, environments.max_episode_steps) == ("CartPole-v1", 60)
    with make(SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)) as environments:
        assert (environments.spec_id, environments.max_episode_steps) == ("CartPole-v1", 500)
    env = SyncVectorEnv([lambda: CountingEnv(3)] * 2)
    assert "num_envs=3, but the VectorEnv has 2" in refusal(env, 3)
    assert "autoreset='same_step', but the VectorEnv has 'next_step'" in refusal(env, autoreset="same_step")
    assert "max_episode_steps with a VectorEnv" in refusal(env, max_episode_steps=5)
    assert "env_kwargs with a VectorEnv" in refusal(env, env_kwargs={"a": 1})


# Refusals


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"num_envs": 0}, "num_envs=0: expected an integer of at least 1"),
        ({"num_envs": 2.0}, "num_envs=2.0"),
        ({"num_envs": True}, "num_envs=True"),
        ({"max_episode_steps": 0}, "max_episode_steps=0: expected an integer of at least 1"),
        ({"autoreset": "nextstep"}, "autoreset='nextstep': expected 'next_step', 'same_step', 'disabled' or None"),
        ({"env_kwargs": {"gravity": 1}}, "'gravity' is not accepted, expected some of"),
        ({"env_kwargs": {"gravity": 1}, "num_envs": 4}, "'gravity' is not accepted"),
        ({"env_kwargs": {"max_episode_steps": 1}}, "give it to make() as max_episode_steps="),
        ({"env_kwargs": 3}, "env_kwargs=3: expected a mapping"),
        ({"bounds": "tanh"}, "bounds='tanh': expected 'scale' or 'clip'"),
    ],
    ids=str,
)
def test_wrong_arguments(options, expected):
    """One line: what was given, what was expected."""
    assert expected in refusal("CartPole-v1", **options)


def test_kwargs_swallowed_by_the_entry_point(registered):
    """An entry point that takes **kwargs and passes them on still gives one line."""
    registered("Swallowing-v0", lambda **kwargs: CountingEnv(**kwargs))
    assert "unexpected keyword argument 'size'" in refusal("Swallowing-v0", env_kwargs={"length": 3, "size": 1})


def test_numpy_integers_are_integers():
    """Counts often come out of NumPy."""
    with make("CartPole-v1", np.int64(2)) as environments:
        assert environments.reset(np.int64(3)).shape == (2, 4)


def test_env_kwargs_with_a_callable():
    """The callable sets itself up."""
    assert "env_kwargs with a callable" in refusal(lambda: CountingEnv(3), env_kwargs={"length": 5})


def test_the_callers_kwargs_are_not_touched():
    """A mapping given is not written to."""
    kwargs = {"sutton_barto_reward": True}
    make("CartPole-v1", 2, max_episode_steps=9, env_kwargs=kwargs).close()
    assert kwargs == {"sutton_barto_reward": True}


def test_old_gym_is_told_apart():
    """C96: an object of `gym`, itself, from the callable, or behind a subclass: use `gymnasium`."""
    old = type("OldEnv", (), {"__module__": "gym.core"})
    mine = type("Mine", (old,), {"__module__": "my_project"})
    for given in (old(), mine(), old, lambda: mine()):
        assert "this is `gym`, use `gymnasium`" in refusal(given)
    assert "gym" not in sys.modules


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (CountingEnv(3), "pass a callable that makes one"),
        (3, "expected an id, a callable"),
        (None, "expected an id, a callable"),
        (lambda: 3, "returned a int, expected a gymnasium.Env: return a gymnasium.Env"),
        (lambda: SyncVectorEnv([lambda: CountingEnv(3)]), "pass the VectorEnv itself"),
    ],
)
def test_what_is_not_an_environment(given, expected):
    """Each says what to give instead."""
    assert expected in refusal(given)


def test_a_callable_must_make_new_ones():
    """The same object twice would be stepped twice as one."""
    env = CountingEnv(3)
    assert "same environment twice" in refusal(lambda: env, 2)
    sizes = iter([3, 4])
    assert "differ from one another" in refusal(lambda: CountingEnv(3, action_space=spaces.Discrete(next(sizes))), 2)


# Seeds

SOURCES = {
    "batched": ("CartPole-v1", {"batched": True}),
    "in process": ("CartPole-v1", {"batched": False}),
    "same step": ("CartPole-v1", {"autoreset": "same_step"}),
    "disabled": ("CartPole-v1", {"autoreset": "disabled"}),
    "callable": (lambda: gym.make("CartPole-v1"), {}),
}


@pytest.mark.parametrize("source", SOURCES)
def test_seeds(source):
    """C51: environments differ and equal seeds repeat, also after a reset without one; others differ."""
    env, options = SOURCES[source]

    def observations(seed):
        with make(env, 4, **options) as environments:
            first, second = environments.reset(seed), environments.reset()
            samples = environments._env.action_space.sample()
            return np.concatenate([first, second]), samples

    once, sampled = observations(0)
    again, sampled_again = observations(0)
    np.testing.assert_array_equal(once, again)
    np.testing.assert_array_equal(sampled, sampled_again)
    other = observations(1)[0]
    rows = {tuple(row) for row in np.concatenate([once, other])}
    assert len(rows) == 16, "an environment of one run repeats in it or in the next run"


def test_unseeded_runs_differ():
    """C51: without a seed nothing repeats."""
    with make("CartPole-v1", 2) as one, make("CartPole-v1", 2) as two:
        assert not np.array_equal(one.reset(), two.reset())


def test_spread_seeds():
    """C51: distinct, repeatable, small enough for C, and unrelated between neighbouring seeds."""
    many = spread_seeds(0, 10_000)
    assert len(set(many)) == len(many) == 10_000
    assert all(0 <= seed < 2**31 for seed in many)
    assert spread_seeds(0, 8) == spread_seeds(0, 8)
    assert not set(spread_seeds(0, 64)) & set(spread_seeds(1, 64))


@pytest.mark.parametrize("seed", [-1, 1.5, "zero", True])
def test_wrong_seeds(seed):
    """A seed is None or an integer of at least 0."""
    with make("CartPole-v1") as environments, pytest.raises(ValueError, match="expected an integer of at least 0"):
        environments.reset(seed)


# Life


def test_closing():
    """Closing twice is fine; a closed one says so, and the context manager closes what is beneath."""
    beneath = SyncVectorEnv([lambda: CountingEnv(3)] * 2)
    with make(beneath) as environments:
        environments.reset(0)
    assert beneath.closed
    environments.close()
    with pytest.raises(ValueError, match="closed"):
        environments.step(np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="closed"):
        environments.reset()


def test_step_needs_a_reset_and_the_right_shape():
    """Both are told before they reach the environment."""
    with make("CartPole-v1", 3) as environments:
        with pytest.raises(ValueError, match="before reset"):
            environments.step(np.zeros(3, np.int64))
        environments.reset(0)
        with pytest.raises(ValueError, match=r"\(3, 1\): expected \(3,\)"):
            environments.step(np.zeros((3, 1), np.int64))
    with make("Pendulum-v1", 3) as environments:
        environments.reset(0)
        with pytest.raises(ValueError, match=r"\(3,\): expected \(3, 1\)"):
            environments.step(np.zeros(3, np.float32))


def test_reset_checks_the_shape_of_observations():
    """An environment whose observations don't have its space's shape is found at once."""
    env = SyncVectorEnv([lambda: CountingEnv(3)] * 2)
    wrong = mock.patch.object(env, "reset", return_value=(np.zeros((2, 2)), {}))
    with make(env) as environments, wrong, pytest.raises(ValueError, match=r"\(2, 2\), expected \(2, 1\)"):
        environments.reset(0)


@pytest.mark.parametrize("source", SOURCES)
def test_cloning(source):
    """Evaluation environments from the same source: fresh, as many as asked, the rest alike."""
    env, options = SOURCES[source]
    with make(env, 4, max_episode_steps=7, **options) as original:
        original.reset(0)
        with original.clone(2) as fresh, original.clone() as same:
            assert (fresh.num_envs, same.num_envs) == (2, 4)
            assert (fresh.autoreset, fresh.max_episode_steps) == (original.autoreset, 7)
            fresh.reset(0)
        original.step(np.zeros(4, np.int64))


def test_cloning_keeps_the_bounds():
    """A clone understands actions as the original does."""
    with make("Pendulum-v1", 2) as original:
        original.bound_actions("scale")
        with original.clone(1) as fresh:
            assert fresh.action.bounds == "scale"


def test_a_vector_instance_cannot_be_cloned():
    """It cannot be built again; the error says what to do."""
    message = "give the evaluation environments explicitly"
    with (
        make(SyncVectorEnv([lambda: CountingEnv(3)])) as environments,
        pytest.raises(ValueError, match=message),
    ):
        environments.clone(1)
