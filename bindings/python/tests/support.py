"""Ranks as threads, programs of their own, and where things lie, for the tests."""

import itertools
import os
import pathlib
import subprocess
import sys
import threading
import unittest

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parent
REPOSITORY = PACKAGE.parent.parent
sys.path.insert(0, str(PACKAGE))

import trireme  # noqa: E402

try:
    import numpy
except ImportError:
    numpy = None

needs_numpy = unittest.skipIf(numpy is None, "numpy is not installed")

WORLD_SIZES = (1, 2, 3, 4, 5, 8)
PATIENCE = 120.0  # seconds; an answer that takes as long is a hang, also on a busy machine

_names = itertools.count()


def rendezvous():
    """A group name that no other test uses."""
    return f"local://python-{os.getpid()}-{next(_names)}"


def run_ranks(world_size, body, timeout=PATIENCE, **options):
    """Runs body(communicator) on as many threads; answers what each returned or raised."""
    name = rendezvous()
    outcomes = [None] * world_size
    lock = threading.Condition()
    running = world_size

    def rank_main(rank):
        nonlocal running
        group = None
        try:
            group = trireme.Communicator(rank, world_size, name, timeout=timeout, **options)
            outcomes[rank] = body(group)
        except BaseException as problem:
            outcomes[rank] = problem
            if group is not None and not isinstance(problem, trireme.TriremeError):
                group.abort(f"the test failed: {problem!r}")
        # All ranks leave together: a rank that leaves early is a failure to those still at work.
        with lock:
            running -= 1
            lock.notify_all()
            lock.wait_for(lambda: running == 0, 2 * PATIENCE)
        if group is not None:
            group.close()

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def run_script(text, *arguments, environment=None):
    """Runs a Python program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", text, *arguments],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        env={**os.environ, "PYTHONPATH": str(PACKAGE), **(environment or {})},
    )


def command():
    """Path of the trireme command; None if it was not built."""
    given = os.environ.get("TRIREME_COMMAND")
    beside = pathlib.Path(trireme._native.library._name).parent / "trireme"
    path = pathlib.Path(given) if given else beside
    return str(path) if path.is_file() else None


class TestCase(unittest.TestCase):
    def ranks(self, world_size, body, **options):
        """The results of body(communicator) on each rank; a rank that raised fails the test."""
        outcomes = run_ranks(world_size, body, **options)
        problems = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if problems:
            # The rank's own problem tells more than the failure that its peers see.
            own = [p for p in problems if not isinstance(p, trireme.TriremeError)]
            raise (own or problems)[0]
        return outcomes

    def alone(self, **options):
        """A group of one that is closed at the end of the test."""
        group = trireme.Communicator(0, 1, rendezvous(), timeout=PATIENCE, **options)
        self.addCleanup(group.close)
        return group

    def passes(self, text, *arguments, environment=None):
        """Runs a program that must end well and write nothing to stderr; answers its output."""
        done = run_script(text, *arguments, environment=environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout
