"""Steps: which rows are transitions, what episodes ended with, and who owns the arrays."""

from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from hybridrl.envs import Episode, EpisodeTracker, Step, check_env, evaluate, final_observations, make
from hybridrl.testing import CountingEnv, IdentityEnv, ReusingEnv

ZEROS = np.zeros(2, np.int64)
MODES = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}


def pair(lengths=(3, 5), *, truncates=False):
    """Factories of counters of these lengths."""
    return [lambda length=length: CountingEnv(length, truncates=truncates) for length in lengths]


def taking_turns(factories):
    """Make one callable of several factories."""
    turn = iter(factories)
    return lambda: next(turn)()


def transitions(environments, steps):
    """Collect (observation, reward, next, terminated, truncated) per environment, and count resets."""
    found = [[] for _ in range(environments.num_envs)]
    resets = 0
    observation = environments.reset(0)
    for _ in range(steps):
        step = environments.step(np.zeros(environments.num_envs, np.int64))
        following = step.observation if step.final_observation is None else step.final_observation
        for i in np.flatnonzero(step.valid):
            row = (observation[i, 0], step.reward[i], following[i, 0], step.terminated[i], step.truncated[i])
            found[i].append(tuple(x.item() for x in row))
        resets += int((~step.valid).sum())
        observation = step.observation
    return found, resets


def reference(factories, steps):
    """Collect the same, autoreset disabled: reset by hand."""
    env = SyncVectorEnv(factories, autoreset_mode=AutoresetMode.DISABLED)
    found = [[] for _ in factories]
    observation, _ = env.reset(seed=0)
    for _ in range(steps):
        following, reward, terminated, truncated, _ = env.step(np.zeros(len(factories), np.int64))
        for i in range(len(factories)):
            row = (observation[i, 0], reward[i], following[i, 0], terminated[i], truncated[i])
            found[i].append(tuple(x.item() for x in row))
        observation, ended = following, terminated | truncated
        if ended.any():
            observation, _ = env.reset(options={"reset_mask": ended})
    env.close()
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize("source", ["callable", "vector"])
def test_same_transitions_in_every_mode(mode, truncates, source):
    """C11: all modes give the transitions of resetting by hand, and none that counts backwards."""
    factories = pair(truncates=truncates)
    if source == "callable":
        environments = make(taking_turns(factories), 2, autoreset=mode)
    else:
        environments = make(SyncVectorEnv(factories, autoreset_mode=MODES[mode]))
    assert environments.autoreset == mode
    with environments:
        found, resets = transitions(environments, 20)
    expected = reference(factories, 20)
    for mine, true in zip(found, expected, strict=True):
        assert mine == true[: len(mine)]
        assert set(mine) == set(true)
        assert all(after > before for before, _, after, _, _ in mine)
    assert sum(map(len, found)) == 40 - resets
    assert resets == (5 + 3 if mode == "next_step" else 0)


def test_valid_starts_anew_at_a_reset():
    """C11: a reset in the middle leaves no row marked as resetting."""
    with make(lambda: CountingEnv(1), 2) as environments:
        environments.reset(0)
        environments.step(ZEROS)
        environments.reset()
        step = environments.step(ZEROS)
        assert step.valid.all()
        assert step.observation.ravel().tolist() == [1, 1]


OBSERVATION = np.array([[0.0], [4.0], [0.0]], np.float32)  # rows 0 and 2 have just been reset
ENDED = np.array([True, False, True])
FINAL = [[3.0], [4.0], [5.0]]


def object_array(*rows):
    """Build what SyncVectorEnv gives."""
    array = np.full(len(rows), None, dtype=object)
    for i, row in enumerate(rows):
        array[i] = None if row is None else np.array([row], np.float32)
    return array


@pytest.mark.parametrize(
    "infos",
    [
        {"final_obs": object_array(3, None, 5), "_final_obs": ENDED},
        {"final_obs": object_array(3, None, 5)},
        {"final_obs": np.array([[3.0], [-7.0], [5.0]], np.float32)},
        {"final_obs": [np.array([3.0]), None, np.array([5.0])]},
        {"final_observation": object_array(3, None, 5), "_final_observation": ENDED},
    ],
    ids=["object array", "without mask", "plain array", "list", "before 1.0"],
)
def test_final_observations_in_every_style(infos):
    """C12: each way to hand over final observations is read, and rows that go on keep their observation."""
    before = OBSERVATION.copy()
    np.testing.assert_array_equal(final_observations(infos, OBSERVATION, ENDED), FINAL)
    np.testing.assert_array_equal(OBSERVATION, before)


@pytest.mark.parametrize(
    "infos",
    [
        {},
        {"final_info": {}},
        {"final_obs": object_array(3, None, None)},
        {"final_obs": object_array(3, None, 5), "_final_obs": np.array([True, False, False])},
        {"final_obs": [np.array([3.0]), None, None]},
    ],
    ids=["none", "other keys", "one missing", "masked out", "list"],
)
def test_a_missing_final_observation_is_an_error(infos):
    """C12: an ended row without its final observation is never papered over."""
    with pytest.raises(ValueError, match="SAME_STEP needs the final observation"):
        final_observations(infos, OBSERVATION, ENDED)


def test_no_final_observation_when_nothing_ended():
    """C12: nothing ended, nothing to give; NEXT_STEP never gives one."""
    assert final_observations({}, OBSERVATION, np.zeros(3, np.bool_)) is None
    with make(lambda: CountingEnv(1), 2) as environments:
        environments.reset(0)
        assert environments.step(ZEROS).final_observation is None


class Declared(VectorEnv):
    """A vector environment of given metadata that ends every episode at its first step, with given infos."""

    def __init__(self, metadata, infos=None):
        self.metadata, self.infos, self.num_envs = metadata, infos or {}, 2
        self.single_observation_space, self.single_action_space = spaces.Box(0, 9, (1,)), spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, 2)
        self.action_space = batch_space(self.single_action_space, 2)
        self.buffer = np.zeros((2, 1), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.buffer[:] = 0
        return self.buffer, {}

    def step(self, actions):
        self.buffer += 1
        return self.buffer, np.ones(2), np.ones(2, np.bool_), np.zeros(2, np.bool_), self.infos


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "does not say how it resets"),
        ({"autoreset_mode": None}, "does not say how it resets"),
        ({"autoreset_mode": "whenever"}, "'whenever'"),
    ],
)
def test_unknown_autoreset_is_refused(metadata, message):
    """C12: absent or unknown autoreset is an error, not a guess."""
    with pytest.raises(ValueError, match=message):
        make(Declared(metadata))


def test_autoreset_by_name_is_read():
    """C12: metadata may hold the mode's name instead of the enum; its missing final observation is told."""
    with make(Declared({"autoreset_mode": "SameStep"})) as environments:
        assert environments.autoreset == "same_step"
        environments.reset(0)
        with pytest.raises(ValueError, match="environment 0 ended but infos has no 'final_obs'"):
            environments.step(ZEROS)


class Disabled(Declared):
    """A vector environment without autoreset; row 1 goes on for ever. ``careless``: it ignores the mask."""

    def __init__(self, careless=None):
        super().__init__({"autoreset_mode": AutoresetMode.DISABLED})
        self.careless = careless

    def reset(self, *, seed=None, options=None):
        if options is not None and self.careless is not None:
            raise self.careless
        mask = self.careless is not None or options is None or options["reset_mask"]
        self.buffer[np.broadcast_to(mask, 2)] = 0
        return self.buffer, {}

    def step(self, actions):
        self.buffer += 1
        return self.buffer, np.ones(2), np.array([True, False]), np.zeros(2, np.bool_), {}


def test_disabled_autoreset_resets_exactly_what_ended():
    """C11, C14: a vector environment of one's own; it writes its buffer again, and the final one stays."""
    with make(Disabled()) as environments:
        assert environments.reset(0).tolist() == [[0], [0]]
        steps = [environments.step(ZEROS) for _ in range(3)]
    assert [step.observation.ravel().tolist() for step in steps] == [[0, 1], [0, 2], [0, 3]]
    assert [step.final_observation.ravel().tolist() for step in steps] == [[1, 1], [1, 2], [1, 3]]
    assert all(step.valid.all() for step in steps)


class Careless(Disabled):
    """It resets all, whatever the mask."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (Careless(), "touched environments that hadn't ended"),
        (Disabled(TypeError("options?")), "raised TypeError: options?"),
        (Disabled(NotImplementedError()), "raised NotImplementedError"),
    ],
    ids=["resets all", "TypeError", "NotImplementedError"],
)
def test_disabled_autoreset_without_a_mask_is_one_line(env, says):
    """C11: where the mask can't be had, episodes that go on would be cut in silence."""
    with make(env) as environments:
        environments.reset(0)
        with pytest.raises(ValueError, match="expected it to reset the masked environments alone; use") as error:
            environments.step(ZEROS)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_an_environment_that_fails_to_reset_says_so_itself():
    """Not that its vector environment knows no mask."""

    class Once(CountingEnv):
        def reset(self, **options):
            if self._count:
                raise ValueError("no second time")
            return super().reset(**options)

        _count = 0

    with make(lambda: Once(1), 2, autoreset="disabled") as environments:
        environments.reset(0)
        with pytest.raises(ValueError, match=r"^no second time$"):
            environments.step(ZEROS)


def test_arrays_belong_to_the_caller():
    """C13, C14: a vector environment that writes its own buffer again cannot change what was returned."""
    with make(Declared({"autoreset_mode": AutoresetMode.NEXT_STEP})) as environments:
        first = environments.reset(0)
        second = environments.step(ZEROS).observation
        environments.step(ZEROS)
    assert (first == 0).all()
    assert (second == 1).all()


@pytest.mark.parametrize("mode", MODES)
def test_an_environment_that_reuses_its_array(mode):
    """C13: final observations are those before the reset, though reset writes over the same array."""
    with make(lambda: ReusingEnv(3), 2, autoreset=mode) as environments:
        found, _ = transitions(environments, 9)
    assert {after for _, _, after, ended, _ in found[0] if ended} == {3.0}
    assert all(after == before + 1 for before, _, after, _, _ in found[0])


def test_check_env_flags_a_reused_array():
    """C13: the checker tells the environment's author; a good environment passes."""
    assert check_env(ReusingEnv(3)) == ["the same array object is returned twice: return a copy from step and reset"]
    assert check_env(CountingEnv(3)) == []


def test_check_env_flags_observations_outside_the_space():
    """The checker stands in for Gymnasium's passive one, which is off for speed."""
    env = CountingEnv(3)
    env.observation_space = spaces.Box(0, 2, (1,))
    (problem,) = check_env(env)
    assert "outside" in problem


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_worker_processes_do_not_alias(shared, copies):
    """C14: stored observations and their successors differ by one, also from shared memory."""
    env = AsyncVectorEnv(pair((9, 9)), shared_memory=shared, copy=copies, context="spawn")
    with make(env) as environments:
        stored = [environments.reset(0)]
        stored += [environments.step(ZEROS).observation for _ in range(3)]
    for before, after in pairwise(stored):
        np.testing.assert_array_equal(before + 1, after)


@pytest.mark.parametrize("mode", ["same_step", "disabled"])
def test_worker_processes_of_gymnasium(mode):
    """C11: the same transitions from worker processes."""
    factories = pair(truncates=True)
    env = AsyncVectorEnv(factories, autoreset_mode=MODES[mode], context="spawn")
    with make(env) as environments:
        found, _ = transitions(environments, 12)
    assert found == reference(factories, 12)


def test_an_owned_array_is_not_copied_twice():
    """C14: a vector environment that copies already has its very array passed on."""
    given = []

    class Recording(SyncVectorEnv):
        def step(self, actions):
            result = super().step(actions)
            given.append(result[0])
            return result

    with make(Recording(pair())) as environments:
        environments.reset(0)
        assert environments.step(ZEROS).observation is given[0]


def play(environments, act, transitions_each):
    """Step until every environment has made that many transitions; return the episodes."""
    tracker, found = EpisodeTracker(environments.num_envs), []
    made = np.zeros(environments.num_envs, int)
    observation = environments.reset(0)
    while made.min() < transitions_each:
        step = environments.step(act(observation))
        observation = step.observation
        made += step.valid
        found += tracker.update(step)
    return found


def balance(observation):
    """Keep CartPole up: push towards where the pole falls."""
    return (observation[:, 2] + observation[:, 3] > 0).astype(np.int64)


@pytest.mark.parametrize(
    "options", [{"batched": True}, {"batched": False}, {"autoreset": "same_step"}, {"autoreset": "disabled"}], ids=str
)
def test_truncated_episodes_are_counted_once_in_every_mode(options):
    """C94: CartPole cut at 20 steps and kept up: three episodes of 20 in each environment."""
    with make("CartPole-v1", 4, max_episode_steps=20, **options) as environments:
        found = play(environments, balance, 60)
    assert sorted(episode.env_index for episode in found) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert {(episode.return_, episode.length) for episode in found} == {(20.0, 20)}
    assert all(episode.truncated for episode in found)


def row(reward, *, terminated=False, truncated=False, valid=True):
    """Build one step of one environment."""
    flags = (np.array([flag]) for flag in (terminated, truncated, valid))
    return Step(np.zeros((1, 1), np.float32), np.array([reward], np.float32), *flags, None)


def test_reset_rows_do_not_count():
    """C88, C94: whatever a reset row carries, it adds nothing and ends nothing."""
    tracker = EpisodeTracker(1)
    assert tracker.update(row(1.0)) == []
    assert tracker.update(row(2.0, truncated=True)) == [Episode(3.0, 2, 0, True)]
    assert tracker.update(row(100.0, truncated=True, valid=False)) == []
    assert tracker.update(row(5.0, terminated=True)) == [Episode(5.0, 1, 0, False)]


def test_terminated_wins_over_truncated_and_reset_forgets():
    """An episode that reached its end at its limit did end."""
    tracker = EpisodeTracker(1)
    assert tracker.update(row(1.0, terminated=True, truncated=True)) == [Episode(1.0, 1, 0, False)]
    tracker.update(row(1.0))
    tracker.reset()
    assert tracker.update(row(1.0, terminated=True)) == [Episode(1.0, 1, 0, False)]


@pytest.mark.parametrize("mode", MODES)
def test_evaluation_does_not_favour_short_episodes(mode):
    """A fixed quota for each environment: lengths 2 and 10 weigh the same."""
    with make(taking_turns(pair((2, 10))), 2, autoreset=mode) as environments:
        found = evaluate(lambda observation: ZEROS, environments, episodes=4, seed=0)
    assert sorted(episode.return_ for episode in found) == [2, 2, 10, 10]
    assert sorted(episode.env_index for episode in found) == [0, 0, 1, 1]


@pytest.mark.parametrize(("episodes", "quota"), [(1, [1, 0]), (3, [2, 1]), (5, [3, 2])])
def test_evaluation_gives_exactly_what_was_asked(episodes, quota):
    """Also when the environments don't divide the episodes."""
    with make(lambda: CountingEnv(3), 2) as environments:
        found = evaluate(lambda observation: ZEROS, environments, episodes=episodes, seed=0)
        assert [sum(e.env_index == i for e in found) for i in range(2)] == quota
        with pytest.raises(ValueError, match="episodes=0"):
            evaluate(lambda observation: ZEROS, environments, episodes=0, seed=0)


IDENTITIES = [
    spaces.Discrete(3, start=5),
    spaces.MultiDiscrete([[3], [3]], start=[[5], [-5]]),
    spaces.MultiBinary(2),
    spaces.Box(-2, 3, (2, 2)),
]


@pytest.mark.parametrize("space", IDENTITIES, ids=str)
def test_identity_env_rewards_repeating_what_is_seen(space):
    """The perfect policy has the best return, another has less."""
    discrete = not isinstance(space, spaces.Box)
    size = 2 if isinstance(space, spaces.MultiBinary) else 3

    def perfect(observation):
        if not discrete:
            return observation
        indices = observation.reshape(2, -1, size).argmax(axis=2)
        return indices[:, 0] if isinstance(space, spaces.Discrete) else indices

    def wrong(observation):
        return (perfect(observation) + 1) % size if discrete else perfect(observation) + 1

    with make(lambda: IdentityEnv(space, length=7), 2) as environments:
        best = evaluate(perfect, environments, episodes=4, seed=0)
        worse = evaluate(wrong, environments, episodes=4, seed=0)
        first = environments.reset(0)
        assert not np.array_equal(first[0], first[1]) or discrete
    assert all(e.return_ == (7 if discrete else 0) and e.length == 7 and e.truncated for e in best)
    assert max(e.return_ for e in worse) < min(e.return_ for e in best)


def test_identity_envs_do_not_share_a_generator():
    """C51: made from one space object, each still draws its own sequence."""
    space = spaces.Box(-1, 1, (1,))
    one, two = IdentityEnv(space), IdentityEnv(space)
    first, second = one.reset(seed=0)[0], two.reset(seed=0)[0]
    assert first == second
    assert one.step(first)[0] == two.step(second)[0]


@pytest.mark.parametrize("options", [{"batched": True}, {"batched": False}, {"autoreset": "same_step"}])
def test_cartpole_agrees_with_gymnasium(options):
    """The face adds nothing: all is as from the environment beneath, reset at the same seeds."""
    actions = np.random.default_rng(0).integers(2, size=(60, 3))
    with make("CartPole-v1", 3, **options) as environments:
        seeds = environments._seeds(7)
        if options.get("batched"):
            beneath = gym.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point")
        else:
            mode = MODES[options.get("autoreset", "next_step")]
            beneath = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 3, autoreset_mode=mode)
        np.testing.assert_array_equal(environments.reset(7), beneath.reset(seed=seeds)[0])
        for action in actions:
            step, expected = environments.step(action), beneath.step(action)
            for mine, theirs in zip(step[:4], expected[:4], strict=True):
                np.testing.assert_array_equal(mine, theirs)
        beneath.close()
