"""Processes that die while they save: the last complete checkpoint is there."""

from __future__ import annotations

import textwrap

import pytest

from .test_checkpoint_manager import PRELUDE

CHECK = """
def check(least):
    "Each checkpoint is whole, and the last that was told to be complete is among them."
    manager = CheckpointManager("saved", 1, chkpt_on_preemption=False)
    steps = manager.all_steps()
    assert least in steps or any(step > least for step in steps), (least, steps, folders())
    for step in steps:
        found = {"w": torch.zeros(64, 4), "n": -1, "cpu": torch.tensor(-1)}  # needs no device
        manager.restore(step, found)
        assert found["n"] == step and found["cpu"] == step, (step, found)
        assert (found["w"].int() == step).all() and found["w"].unique().numel() == 1, found
    return steps
"""


@pytest.fixture
def run(run_python):
    def run(code, timeout=300):
        # Forks before there is a device: importing takes longer than what is tested.
        start = PRELUDE.replace("xr.use_spmd()\n", "") + CHECK
        env = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4"}
        return run_python(start + textwrap.dedent(code), env=env, timeout=timeout)

    return run


@pytest.mark.forks
@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=pytest.mark.slow)])
def test_processes_that_are_killed(run, kills):
    """At random moments: alternately saves in the background and not, each step twice, with other
    values, so that a checkpoint also takes the place of another."""
    run(
        f"""
        import random, select
        random.seed(3)

        def train(out, steps):
            xr.use_spmd()
            manager = CheckpointManager("saved", 1, max_to_keep=2, num_of_threads=2)
            step = max(manager.all_steps(), default=0)
            while True:
                step += 1
                for part in (0.0, 0.5):
                    given = {{"w": split(torch.full((64, 4), step + part)), "n": step,
                             "cpu": torch.tensor(step)}}
                    if step % 2:
                        manager.save(step, given)
                    else:
                        manager.save_async(step, given)
                        time.sleep(random.random() / 100)
                        manager.join()
                    os.write(out, step.to_bytes(4, "big"))

        least, unfinished = 0, 0
        for _ in range({kills}):
            told, out = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(told)
                try:
                    train(out, least)
                finally:
                    os._exit(1)
            os.close(out)
            assert select.select([told], [], [], 60)[0], "nothing was saved"
            time.sleep(random.random() / 2)
            os.kill(child, signal.SIGKILL)
            assert os.waitpid(child, 0)[1] == signal.SIGKILL, "the process had ended by itself"
            seen = b"".join(iter(lambda: os.read(told, 4096), b""))
            os.close(told)
            least = int.from_bytes(seen[-4:], "big")
            steps = check(least)
            assert len([s for s in steps if s <= least]) <= 2 and len(steps) <= 3, steps
            unfinished += any(name.startswith(".") for name in folders())
        assert unfinished >= {kills} // 25, unfinished  # some died in the middle
        """,
        timeout=900,
    )


@pytest.mark.forks
def test_death_before_each_call_of_the_file_system(run):
    """The process ends before the first call that changes files, before the second, and so on."""
    run("""
    def values(step):
        return {"w": torch.full((64, 4), float(step)), "n": step, "cpu": torch.tensor(step)}

    CHANGES = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"}

    def train(deadly):
        done = 0
        def hook(event, arguments):
            nonlocal done
            if event in CHANGES and (event != "open" or "w" in str(arguments[1])):
                done += 1
                if done == deadly:
                    os._exit(9)
        manager = CheckpointManager("saved", 1, max_to_keep=1)
        sys.addaudithook(hook)
        manager.save(2, values(2))
        manager.save(2, values(2))  # in its own place
        os._exit(0)

    deadly, ended = 0, None
    while ended != 0:
        deadly += 1
        CheckpointManager("saved", 1, max_to_keep=1).save(1, values(1), force=True)
        assert folders() == ["1"], folders()  # what the dead have left is gone
        child = os.fork()
        if child == 0:
            try:
                train(deadly)
            finally:
                os._exit(1)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert ended in (0, 9), ended
        steps = check(1)
        assert steps in ([1], [1, 2], [2]), (deadly, steps, folders())
        CheckpointManager("saved", 1).save(3, values(3))  # cleans up, and deletes no checkpoint
        assert check(1) == [*steps, 3] == list(map(int, folders())), (deadly, folders())
    assert deadly > 20 and steps == [2], (deadly, steps)
    """)
