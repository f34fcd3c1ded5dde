"""Environments in processes: the same steps as in-process, and one line for each way to fail, without a trace."""

import gc
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
from pathlib import Path
from unittest import mock

import gymnasium as gym
import numpy as np
import psutil
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import hybridrl as hrl
from hybridrl import cli
from hybridrl.algorithms import PPOConfig
from hybridrl.envs import Forecast, ProcessVectorEnv, make, probe
from hybridrl.networks import NetworkConfig
from hybridrl.recipes import PPORecipe
from hybridrl.testing import CountingEnv

ROOT = Path(__file__).resolve().parents[1]
ZEROS = np.zeros(2, np.int64)
PROMPT_S = 30.0  # "within seconds", on a machine that does other things too


def pids(environments):
    return [process.pid for process in environments._env.processes]


def all_gone(workers):
    """Wait until no such process is left (a zombie is one that is gone)."""
    deadline = time.monotonic() + PROMPT_S
    while left := [pid for pid in workers if psutil.pid_exists(pid) and _runs(pid)]:
        if time.monotonic() > deadline:
            return left
        time.sleep(0.02)
    return []


def _runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def line(error):
    assert "\n" not in str(error.value)
    return str(error.value)


def walking():
    """A factory of random walks: float64, ending by either end at random, in an array that they reuse."""

    class Walk(gym.Env):
        def __init__(self):
            self.observation_space, self.action_space = spaces.Box(-99, 99, (3,), np.float64), spaces.Discrete(2)
            self._at = np.zeros(3)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self._at[:] = self.np_random.normal(size=3)
            return self._at, {}

        def step(self, action):
            self._at += self.np_random.normal(size=3) + action
            ends = self.np_random.random(2) < 0.15
            return self._at, self._at[0], bool(ends[0]), bool(ends[1]), {}

    return Walk


STARTED = "spawn" if sys.platform == "win32" else "forkserver"


@pytest.fixture(scope="module", params=["next_step", "same_step", "disabled"])
def walks(request):
    """Random walks in two processes."""
    with make(walking(), 2, autoreset=request.param, processes=True) as environments:
        yield environments


def test_the_same_seeds_give_the_very_same_steps(walks):
    """C11, C13, C51: bit for bit as in-process, final observations too, and after a second, unseeded reset."""
    rng = np.random.default_rng(0)
    with make(walking(), 2, autoreset=walks.autoreset) as here:
        where = f"one process each, by {STARTED}, {walks.autoreset.upper()}"
        assert walks.description == f"Walk x 2, {where}; {here.observation.note}"
        assert isinstance(walks._env, ProcessVectorEnv)
        for seed in (7, None):
            first, expected = walks.reset(seed), here.reset(seed)
            np.testing.assert_array_equal(first, expected)
            assert not np.array_equal(first[0], first[1])
            kept = []
            for _ in range(40):
                actions = rng.integers(2, size=2)
                kept.append((walks.step(actions), here.step(actions)))
            assert sum((step.terminated | step.truncated).sum() for step, _ in kept) > 5
            for step, reference in kept:  # compared at the end: nothing returned is written again
                for mine, true in zip(step, reference, strict=True):
                    assert (mine is None) == (true is None)
                    np.testing.assert_array_equal(mine, true)
                    assert mine is None or mine.dtype == true.dtype


def test_an_interrupted_step_leaves_no_answer_behind(walks):
    """C47: after Ctrl-C in the middle of a step, a reset starts anew; the stale answer isn't taken for its own."""
    expected = walks.reset(5), walks.step(ZEROS)
    interrupted = mock.patch.object(walks._env, "_hear", side_effect=KeyboardInterrupt)
    with interrupted, pytest.raises(KeyboardInterrupt):
        walks.step(ZEROS)
    np.testing.assert_array_equal(walks.reset(5), expected[0])
    np.testing.assert_array_equal(walks.step(ZEROS).observation, expected[1].observation)


def test_options_do_not_reach_a_process(walks):
    with pytest.raises(ValueError, match="expected 'reset_mask' alone"):
        walks._env.reset(options={"level": 3})


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiDiscrete([[2], [3]], dtype=np.int8),
        spaces.Box(-1, 1, (2,), np.float64),
    ],
    ids=str,
)
def test_actions_arrive_as_the_environment_wants_them(space):
    """Its dtype and shape, whoever carries them; and what it keeps of them doesn't change."""

    class Checking(CountingEnv):
        def step(self, action):
            observation, *rest = super().step(action)
            mine = space.contains(action) and action.dtype == space.dtype
            return observation, float(mine and all(map(space.contains, self.received))), *rest[1:]

    with make(lambda: Checking(9, action_space=space), 1, processes=True) as environments:
        environments.reset(0)
        for action in environments.action.sample(5, np.random.default_rng(0)):
            assert environments.step(action[None]).reward == 1.0


# How workers start


def telling():
    """A factory of environments that observe their process; action 1 loads torch.

    They tell torch's threads (0: not loaded), OMP_NUM_THREADS, all threads, and whether Ctrl-C is ignored.
    """

    class Telling(CountingEnv):
        def __init__(self):
            super().__init__(5)
            self.observation_space = spaces.Box(-99, 99, (4,))

        def step(self, action):
            if action == 1:
                import torch  # noqa: F401
            return super().step(action)

        def _observation(self):
            torch = sys.modules.get("torch")
            threads = 0 if torch is None else torch.get_num_threads()
            omp, ignored = os.environ.get("OMP_NUM_THREADS", "-1"), signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            tasks = len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 1
            return np.array([threads, int(omp), tasks, ignored], np.float32)

    return Telling


def test_workers_use_one_thread_and_load_no_torch(monkeypatch):
    """C44, C49: also after CUDA was initialised here, which a fork would break; what is this process's own stays."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    main = sys.modules["__main__"]
    before = dict(os.environ), main.__spec__, getattr(main, "__file__", None)
    with make(telling(), 2, processes=True) as environments:
        assert f"by {STARTED}" in environments.description
        assert environments.reset(0).tolist() == [[0, 1, 1, 1]] * 2
        assert environments.step(np.array([0, 1])).observation.tolist() == [[0, 1, 1, 1], [1, 1, 1, 1]]
    assert (dict(os.environ), main.__spec__, getattr(main, "__file__", None)) == before


def test_the_user_decides_how_many_threads_a_worker_has(monkeypatch):
    """C49: whatever the fork server began with."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with make(telling(), 1, processes=True) as environments:
        environments.reset(0)
        assert environments.step(np.array([1])).observation[0, :2].tolist() == [2, 2]


def test_importing_environments_imports_no_torch():
    """C49: every worker does that."""
    code = "import sys, hybridrl.envs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0


UNGUARDED = """
    import sys
    import imaplib  # no environment loads that
    import gymnasium, numpy
    from hybridrl import envs
    from hybridrl.testing import CountingEnv

    class Mine(CountingEnv):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, float("imaplib" in sys.modules), *rest

    gymnasium.register("Mine-v0", "__main__:Mine", kwargs={"length": 5})
    length = 5
    for env in ("Mine-v0", lambda: Mine(length)):
        with envs.make(env, 1, processes=True) as environments:
            environments.reset(0)
            step = environments.step(numpy.zeros(1, int))
            print(step.observation.tolist(), step.reward.tolist())
"""


@pytest.mark.parametrize("how", ["script", "-c"])
def test_a_script_without_a_guard_and_a_cell_just_work(tmp_path, how):
    """C103: the main module isn't run again, nor what it imports; its classes, lambdas and ids reach the workers."""
    source = textwrap.dedent(UNGUARDED)
    (tmp_path / "script.py").write_text(source)
    command = [sys.executable, *(["-c", source] if how == "-c" else [str(tmp_path / "script.py")])]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "[[1.0]] [0.0]\n" * 2


def test_an_id_that_only_this_process_knows():
    """C93: its registration travels with it."""
    with mock.patch.dict(gym.registry):
        gym.register("OnlyHere-v0", lambda: CountingEnv(4))
        with make("OnlyHere-v0", 1, processes=True) as environments:
            assert environments.reset(0).tolist() == [[0]]


def test_a_factory_that_cannot_be_sent_is_told_at_once():
    """C103: before any process is started."""
    lock = threading.Lock()
    with mock.patch.object(ProcessVectorEnv, "_start") as start, pytest.raises(ValueError) as error:
        make(lambda: CountingEnv(3 + lock.locked()), 2, processes=True)
    assert "can't be sent to another process (cannot pickle '_thread.lock' object): define it in a module" in line(
        error
    )
    start.assert_not_called()


def from_a_module_that_is_nowhere():
    module = types.ModuleType("hrl_nowhere")
    exec("from hybridrl.testing import CountingEnv\ndef factory(): return CountingEnv(3)", module.__dict__)
    sys.modules["hrl_nowhere"] = module
    return module.factory


def other_there():
    return lambda: CountingEnv(3, action_space=spaces.Discrete(3 if multiprocessing.parent_process() else 2))


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (from_a_module_that_is_nowhere, "No module named 'hrl_nowhere'"),
        (other_there, "its spaces aren't those of the one made in the parent"),
    ],
)
def test_an_environment_that_cannot_be_made_there_is_one_line(build, says, capfd):
    """C103: its processes are gone, and print no traceback."""
    before = set(multiprocessing.active_children())
    with pytest.raises(ChildProcessError, match="environment 0 could not be made in its process") as error:
        make(build(), 1, processes=True)
    sys.modules.pop("hrl_nowhere", None)
    assert says in line(error)
    assert "define it in a module that can be imported there" in line(error)
    assert "Traceback" in error.value.__notes__[0]
    assert set(multiprocessing.active_children()) == before
    assert capfd.readouterr().err == ""


def test_where_no_process_can_be_started(monkeypatch):
    """C103: while the main module is imported, and inside a worker: one line, not multiprocessing's page."""
    this = multiprocessing.current_process()
    with monkeypatch.context() as patched:
        patched.setattr(this, "_inheriting", True, raising=False)
        with pytest.raises(ValueError, match='under if __name__ == "__main__":') as error:
            make(lambda: CountingEnv(3), 2, processes=True)
        line(error)
    monkeypatch.setitem(this._config, "daemon", True)
    with pytest.raises(ValueError, match="itself a worker that may start none"):
        make(lambda: CountingEnv(3), 2, processes=True)


# How they end


def naughty():
    """A factory of environments that misbehave as the action says."""

    class Naughty(CountingEnv):
        def step(self, action):
            if action == 1:
                raise ValueError("no such state\nmore about it")
            if action == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            if action == 3:
                os._exit(3)
            if action == 4:
                time.sleep(600)
            observation, *rest = super().step(action)
            return (np.zeros(7) if action == 5 else observation), *rest

    return lambda: Naughty(100, action_space=spaces.Discrete(6))


@pytest.mark.parametrize(
    ("action", "error_type", "says"),
    [
        (
            1,
            ChildProcessError,
            r"environment 1 raised ValueError: no such state \(.*:\d+, in step\)",
        ),
        (2, ChildProcessError, r"the process of environment 1 was killed by SIGKILL \(out of memory\?\)"),
        (3, ChildProcessError, r"the process of environment 1 ended with exit code 3"),
        (4, TimeoutError, r"environment 1 has not answered within 2 s; .* give a longer step_timeout_s"),
        (5, ChildProcessError, r"environment 1 raised ValueError: an observation of shape \(7,\): expected \(1,\) .*"),
    ],
    ids=["raises", "killed", "exits", "hangs", "wrong shape"],
)
def test_each_way_to_fail_is_one_line_that_names_the_environment(action, error_type, says, capfd):
    """C45: within seconds; the others are shut down, and what is tried afterwards says why nothing is left."""
    environments = make(naughty(), 2, processes=True, step_timeout_s=2.0 if action == 4 else PROMPT_S)
    workers = pids(environments)
    environments.reset(0)
    environments.step(ZEROS)
    started = time.monotonic()
    with pytest.raises(error_type) as error:
        environments.step(np.array([0, action]))
    assert time.monotonic() - started < PROMPT_S
    assert re.fullmatch(says, line(error))
    if action == 1:
        assert "more about it" in error.value.__notes__[0]
    assert all_gone(workers) == []
    for use in (lambda: environments.step(ZEROS), environments.reset):
        with pytest.raises(ValueError, match=r"these environments are closed \(.*environment 1 .*\): make new ones"):
            use()
    environments.close()
    assert capfd.readouterr().err == ""


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if name.startswith(("pym-", "psm_", "sem.mp"))}


@pytest.mark.skipif(sys.platform != "linux", reason="lists /dev/shm and file descriptors")
def test_closing_leaves_nothing_and_may_be_repeated():
    """C47: no child, no shared memory, no open file; closed twice, collected unclosed, or closed within a step."""
    with make(lambda: CountingEnv(3), 1, processes=True):
        pass  # the fork server stays, by design
    gc.collect()
    before = shared_memory(), psutil.Process().num_fds(), set(multiprocessing.active_children())
    closed = make(lambda: CountingEnv(3), 2, processes=True)
    workers = pids(closed)
    closed.reset(0)
    closed.close()
    closed.close()
    with pytest.raises(ValueError, match="closed"):
        closed.step(ZEROS)
    forgotten = make(lambda: CountingEnv(3), 1, processes=True)
    workers += pids(forgotten)
    del closed, forgotten
    gc.collect()
    assert all_gone(workers) == []
    assert set(multiprocessing.active_children()) == before[2]
    gc.collect()
    assert shared_memory() == before[0]
    assert psutil.Process().num_fds() <= before[1]


ENDING = """
    import sys, numpy
    from hybridrl import envs
    from hybridrl.testing import CountingEnv
    environments = envs.make(lambda: CountingEnv(3), 2, processes=True)
    environments.reset(0)
    print(*(process.pid for process in environments._env.processes), flush=True)
    if sys.argv[1] == "raise":
        raise RuntimeError("in the main loop")
    while True:
        environments.step(numpy.zeros(2, int))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals")
@pytest.mark.parametrize("how", ["raise", "SIGINT", "SIGKILL"])
def test_workers_end_with_their_parent(how):
    """C47: whether it raises, gets Ctrl-C (as its whole group does) or is killed."""
    command = [sys.executable, "-c", textwrap.dedent(ENDING), how]
    parent = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(workers) == 2
    if how == "SIGINT":
        os.killpg(parent.pid, signal.SIGINT)
    if how == "SIGKILL":
        parent.kill()
    _, err = parent.communicate(timeout=PROMPT_S)
    assert parent.returncode != 0
    assert all_gone(workers) == []
    assert err.count("Traceback") == (0 if how == "SIGKILL" else 1), err


# Agents and the command line

SMALL = PPORecipe(
    ppo=PPOConfig(rollout_steps=16, minibatch_size=16, epochs=1), network=NetworkConfig(hidden=(8,)), num_envs=2
)


@pytest.mark.usefixtures("one_thread")
def test_an_agent_learns_the_same_in_processes():
    """To the last bit; evaluation is in-process, and says so."""

    def run(processes):
        agent = hrl.PPO(walking(), SMALL, seed=1, processes=processes)
        result = agent.learn(total_timesteps=96)
        assert len(agent.evaluate(2)) == 2
        assert "in-process" in agent.environments.clone(1).description
        agent.close()
        return agent.learner.flat.values.clone(), result.episodes, str(result.report)

    there, here = run(True), run(False)
    assert torch.equal(there[0], here[0])
    assert there[1] == here[1]
    assert "one process each" in there[2]


@pytest.mark.usefixtures("one_thread")
def test_the_command_line_asks_for_processes(capsys):
    small = ["--set", "rollout_steps=16", "--set", "num_envs=2", "--set", "epochs=1", "--total-timesteps", "64"]
    arguments = ["train", "ppo", "CartPole-v1", "--processes", "yes", "--evaluate", "0", "--threads", "1", *small]
    assert cli.main(arguments) == 0
    captured = capsys.readouterr()
    assert "CartPole-v1 x 2, one process each" in captured.out
    assert captured.err == ""


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"processes": "yes"}, "processes='yes': expected False, True or 'auto'"),
        ({"processes": 1}, "processes=1: expected False, True or 'auto'"),
        ({"step_timeout_s": 5.0}, "step_timeout_s=5.0 without processes"),
        ({"step_timeout_s": 0, "processes": True}, "step_timeout_s=0: expected None or a number of seconds above 0"),
        ({"batched": True, "processes": True}, "batched=True and processes=True: expected one of them"),
    ],
    ids=str,
)
def test_wrong_arguments(options, says):
    with pytest.raises(ValueError) as error:
        make("CartPole-v1", 2, **options)
    assert says in line(error)


def test_what_cannot_be_given_processes_is_refused_before_any_starts():
    """A VectorEnv, and spaces that are refused in-process too."""
    with pytest.raises(ValueError, match="processes with a VectorEnv: it is built already"):
        make(SyncVectorEnv([lambda: CountingEnv(3)]), processes=True)
    with mock.patch.object(ProcessVectorEnv, "_start") as start:
        for space in (spaces.Dict({"a": spaces.Discrete(2)}), spaces.Box(0, 9, (2,), np.int32)):
            with pytest.raises(ValueError, match="TransformAction"):
                make(lambda space=space: CountingEnv(3, action_space=space), 2, processes=True)
    start.assert_not_called()


# "auto"


def test_a_forecast_by_hand():
    """Four environments on two cores: two rounds of the slowest, and four round trips."""
    found = Forecast(num_envs=4, cores=2, step_s=1e-3, slowest_s=1.5e-3, round_trip_s=25e-6)
    assert found.in_process == pytest.approx(1000)
    assert found.processes == pytest.approx(4 / (2 * 1.5e-3 + 4 * 25e-6))
    assert not found.pays  # 1.29
    assert Forecast(num_envs=4, cores=2, step_s=1e-3, slowest_s=1.4e-3, round_trip_s=25e-6).pays
    assert str(found) == (
        "measured: a step 1 ms, a process's round trip 25 us, 2 cores; predicted: 1,000 steps/s in-process, "
        "1,290 in processes"
    )


class Ticking:
    """A clock that goes on by so much at each look."""

    def __init__(self, tick):
        self.now, self.tick = 0.0, tick

    def __call__(self):
        self.now += self.tick
        return self.now


@pytest.mark.parametrize(("tick", "steps"), [(0.06, 3), (5.0, 1), (1e-6, 1999)])
def test_stepping_is_bounded(tick, steps):
    """0.2 s or 2,000 steps, without the first; where one step takes longer, that one; each end has its reset."""
    env = CountingEnv(3)
    times = probe.step_times(env, clock=Ticking(tick))
    assert len(times) == steps
    assert times == pytest.approx(tick)
    assert env._count < 3


def test_the_slowest_of_several():
    """Of two drawn from 1 and 3, three in four hold a 3: 2.5; alone, the mean."""
    steps = np.array([1.0, 3.0])
    assert probe.mean_of_slowest(steps, 2) == pytest.approx(2.5, abs=0.1)
    assert probe.mean_of_slowest(steps, 1) == pytest.approx(2.0, abs=0.1)


def sleeping(seconds):
    class Sleeping(CountingEnv):
        def step(self, action):
            time.sleep(seconds)
            return super().step(action)

    return lambda: Sleeping(100)


def test_auto_takes_processes_where_they_pay_and_tells_the_numbers(monkeypatch):
    """Steps of 20 ms sleep side by side, whatever else this machine does."""
    monkeypatch.setattr(probe, "available_cores", lambda: 2.5)
    with make(sleeping(0.02), 2, processes="auto") as environments:
        text = environments.description
        assert "Sleeping x 2, one process each" in text
        assert re.search(r"measured: a step \d+(\.\d)? ms, a process's round trip \d", text)
        assert ", 2 cores; predicted: " in text
        assert environments.reset(0).shape == (2, 1)


def test_auto_stays_in_process_where_they_do_not_pay(monkeypatch):
    """A step of a few microseconds is never worth a message; the numbers are told."""
    monkeypatch.setattr(probe, "available_cores", lambda: 2.0)
    with make(lambda: CountingEnv(9), 2, processes="auto") as environments:
        assert "in-process vectorisation (measured: a step " in environments.description
    for cores, num_envs, says in ((2.0, 1, "one environment"), (1.5, 2, "1.5 cores"), (None, 2, "unknown cores")):
        monkeypatch.setattr(probe, "available_cores", lambda cores=cores: cores)
        with make(lambda: CountingEnv(9), num_envs, processes="auto") as environments:
            assert f"in-process vectorisation ({says}" in environments.description


def test_auto_takes_the_batched_implementation_first():
    """Without measuring anything."""
    with mock.patch.object(probe, "step_times") as timed, make("CartPole-v1", 4, processes="auto") as environments:
        assert "Gymnasium's batched implementation" in environments.description
    timed.assert_not_called()
