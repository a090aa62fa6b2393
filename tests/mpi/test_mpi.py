#!/usr/bin/env python3
"""Jobs under mpirun, on one host and on two: every collective, failures, training as elsewhere, a
rank that is killed.

Usage: test_mpi.py openmpi|mpich BUILD_FOLDER [unittest arguments]
"""

import concurrent.futures
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/cluster"))

import hosts  # noqa: E402
from waiting import alive, wait_until  # noqa: E402

NAME = ""
BUILD = pathlib.Path()
TRIALS = (
    100 if os.environ.get("TRIREME_TEST_LONG") else 5
)  # of killing a rank, each of two ways to work
AT_ONCE = 5  # jobs that run side by side, as they mostly wait
LONG = 240  # seconds; longer than anything healthy takes on a busy machine
WORLDS = (1, 2, 3, 4)


def environment(**more):
    """Without what would lead a rank elsewhere."""
    names = re.compile(
        r"^(RANK|WORLD_SIZE|MASTER_|SLURM_|TRIREME_RENDEZVOUS|TRIREME_MPI|OMPI_|PMI_|PMIX_)"
    )
    kept = {name: value for name, value in os.environ.items() if not names.match(name)}
    return {**kept, **more}


def mpirun(ranks, *command, name=None):
    name = name or NAME
    options = ["--allow-run-as-root", "--oversubscribe"] if name == "openmpi" else []
    return [f"mpirun.{name}", *options, "-np", str(ranks), *map(str, command)]


def run(ranks, *command, **more):
    """In a folder of its own: what mpirun keeps there, another one might clear away."""
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            mpirun(ranks, *command),
            capture_output=True,
            text=True,
            timeout=LONG,
            env=environment(TMPDIR=folder, **more),
        )


def run_well(test, ranks, *command, **more):
    result = run(ranks, *command, **more)
    test.assertEqual(result.returncode, 0, result.stdout + result.stderr)
    return result.stdout


def at_once(call, *arguments):
    """Calls with one of each list at a time, AT_ONCE calls side by side. Raises what one of them raises."""
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(call, *arguments))


def check_training(test, start, ranks):
    """The same program, which knows nothing of MPI, as a rank of `start` and alone."""
    with tempfile.TemporaryDirectory() as folder:
        program = [
            str(BUILD / "examples/example_digits"),
            "--strategy",
            "zero3",
            "--passes",
            "2",
            "--data",
            str(ROOT / "examples/data/digits.csv.gz"),
            "--out",
        ]
        alone, out = pathlib.Path(folder, "alone"), pathlib.Path(folder, "out")
        subprocess.run(
            [*program, str(alone)],
            check=True,
            timeout=LONG,
            env=environment(),
            stdout=subprocess.DEVNULL,
        )
        test.assertIn(f"ranks={ranks}", start(*program, out))
        test.assertEqual(out.read_bytes(), alone.read_bytes())


class Parts:
    """Of the program that is one rank, whatever moves the bytes."""

    BACKEND = ()

    def part(self, part, worlds=WORLDS, rendezvous="mpi://", **more):
        for ranks in worlds:
            with self.subTest(ranks=ranks), tempfile.TemporaryDirectory() as folder:
                run_well(
                    self,
                    ranks,
                    BUILD / "tests/mpi/mpi_job",
                    part,
                    rendezvous,
                    *self.BACKEND,
                    TRIREME_TEST_FOLDER=folder,
                    **more,
                )

    def test_collectives_match_plain_loops(self):
        self.part("collectives")

    def test_a_disagreement_is_a_mismatch_on_all_ranks(self):
        self.part("mismatch", (2, 3))

    def test_a_rank_that_does_not_come_is_named(self):
        self.part("timeout", (3,))

    def test_groups_one_after_the_other_and_at_once(self):
        self.part("again", (1, 3))

    def test_what_does_not_go_is_refused(self):
        self.part("refusals", (2,))

    def test_env_means_mpi_inside_mpirun(self):
        self.part("refusals", (3,), "env://")
        self.part("refusals", (2,), "env://", TRIREME_RENDEZVOUS="mpi://")

    def test_creating_a_group_waits_for_nobody(self):
        self.part("lazy", (2, 3))

    def assert_gone(self, pids):
        wait_until(lambda: not any(map(alive, pids)), "the end of every rank")

    def start_waiting_job(self, stack):
        """In a folder of its own, as run()."""
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        errors = stack.enter_context(open(f"{folder}/errors", "w"))
        command = mpirun(3, BUILD / "tests/mpi/mpi_job", "wait", "mpi://", *self.BACKEND)
        job = stack.enter_context(
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment(TMPDIR=folder),
            )
        )
        stack.callback(job.kill)
        return job, pathlib.Path(folder, "errors")

    def pids_of(self, job, errors):
        """Of each rank, once all of them wait."""
        pids = {}
        for line in job.stdout:
            pid, rank = re.fullmatch(r"pid (\d+) of rank (\d+)\n", line).groups()
            pids[int(rank)] = int(pid)
            if len(pids) == 3:
                return pids
        self.fail(f"a job has ended too early: {errors.read_text()}")

    def test_a_killed_rank_ends_the_job_and_leaves_nothing(self):
        slowest = 0.0
        for first in range(0, TRIALS, AT_ONCE):
            with contextlib.ExitStack() as stack:
                count = min(AT_ONCE, TRIALS - first)
                jobs = [self.start_waiting_job(stack) for _ in range(count)]
                pids = [self.pids_of(*job) for job in jobs]
                killed = time.monotonic()
                for ranks in pids:
                    os.kill(ranks[1], signal.SIGKILL)
                for (job, _), ranks in zip(jobs, pids, strict=True):
                    self.assertNotEqual(job.wait(timeout=LONG), 0)
                    self.assert_gone(ranks.values())
                    slowest = max(slowest, time.monotonic() - killed)
        print(
            f"\nkill: under {NAME}, {TRIALS} jobs of 3 ended at most {slowest:.2f} s after a rank",
            flush=True,
        )


class MpiItself(Parts, unittest.TestCase):
    """backend = "mpi"."""

    BACKEND = ("mpi",)

    def test_calls_that_begin_at_once_fail_as_others_do(self):
        self.part("mismatch_at_once", (2, 3))
        self.part("timeout_at_once", (3,))

    def test_a_rank_that_does_not_go_on_ends_the_collective_of_all(self):
        parts = ("frozen", "broken", "frozen_at_once", "broken_at_once")
        at_once(lambda part: self.part(part, (2, 3)), parts)


class OneHost(Parts, unittest.TestCase):
    """Ranks that share a host meet by MPI, and work by its memory."""

    def test_groups_are_made_from_it_and_from_those(self):
        self.part("children")

    def test_ranks_go_on_without_one_that_has_left(self):
        self.part("shrink", (3,))

    def test_who_fails_to_tell_its_host_may_try_again(self):
        self.part("failing", (3,))

    def test_a_rank_that_never_comes_is_named(self):
        self.part("never", (3,))

    def test_a_rank_that_dies_before_it_tells_its_host_ends_the_job(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        command = mpirun(3, BUILD / "tests/mpi/mpi_job", "dying")
        with subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(TRIREME_TEST_FOLDER=str(folder)),
        ) as job:
            self.assertNotEqual(job.wait(timeout=LONG), 0)
        pids = [int(path.read_text()) for path in folder.glob("pid.*")]
        self.assertEqual(len(pids), 3)
        self.assert_gone(pids)


class Jobs(unittest.TestCase):
    def test_the_library_can_be_named(self):
        for library in (NAME, str(BUILD / f"libtrireme_mpi_{NAME}.so")):
            run_well(self, 2, BUILD / "tests/mpi/mpi_job", "refusals", TRIREME_MPI_LIBRARY=library)

    def test_a_library_that_is_none_is_named(self):
        for library in ("/nowhere/libmpi.so", str(BUILD / "libtrireme.so.1")):
            result = run(1, BUILD / "tests/mpi/mpi_job", "refusals", TRIREME_MPI_LIBRARY=library)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn("cannot join: trireme_communicator_create: no MPI: ", result.stderr)
            self.assertIn(library, result.stderr)

    def test_outside_of_mpirun_it_says_what_is_missing(self):
        result = subprocess.run(
            [str(BUILD / "tests/mpi/mpi_job"), "refusals"],
            timeout=LONG,
            capture_output=True,
            text=True,
            env=environment(),
        )
        self.assertEqual(result.returncode, 3)
        self.assertIn("OMPI_COMM_WORLD_RANK", result.stderr)
        self.assertIn("PMI_RANK", result.stderr)

    def test_training_has_the_bits_of_any_other_group(self):
        for ranks in (2, 3):
            check_training(self, lambda *program: run_well(self, ranks, *program), ranks)


class TwoHosts(unittest.TestCase):
    """Two network namespaces; ranks of one do not share the memory of the other."""

    @classmethod
    def setUpClass(cls):
        cls.hosts = hosts.Hosts(2)
        cls.addClassCleanup(cls.hosts.close)

    def run_on_hosts(self, each, *command):
        with tempfile.TemporaryDirectory() as folder:
            result = self.hosts.run(
                0,
                [*self.hosts.mpirun(NAME, each, folder), *map(str, command)],
                capture_output=True,
                text=True,
                timeout=LONG,
                env=environment(),
            )
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def part(self, part, each):
        return self.run_on_hosts(each, BUILD / "tests/mpi/mpi_job", part)

    def test_mpi_moves_the_bytes_between_ranks_with_a_host_each(self):
        self.assertRegex(self.part("backend", 1), r"^mpi \((Open MPI|MPICH)\)\n$")

    def test_ranks_that_share_hosts_work_by_their_memory_too(self):
        self.assertRegex(
            self.part("backend", 2), r"^hierarchical \(2 hosts x 2, (Open MPI|MPICH)\)\n$"
        )

    def test_collectives_match_plain_loops(self):
        for each in (1, 2, 3):
            self.part("collectives", each)

    def test_a_disagreement_is_a_mismatch_on_all_ranks(self):
        for each in (1, 2):
            self.part("mismatch", each)

    def test_groups_one_after_the_other_and_at_once(self):
        for each in (1, 2):
            self.part("again", each)

    def test_a_rank_that_does_not_go_on_ends_the_collective_of_all(self):
        at_once(lambda part: self.part(part, 2), ("timeout", "frozen", "broken"))

    def test_training_has_the_bits_of_any_other_group(self):
        for each in (1, 2):
            check_training(self, lambda *program: self.run_on_hosts(each, *program), 2 * each)


class SmallCalls(unittest.TestCase):
    """Calls whose payload travels with their comparison, which the callers exchange themselves."""

    def part(self, part, worlds):
        """The long run makes groups of all sizes."""
        some = worlds if os.environ.get("TRIREME_TEST_LONG") else (2, 3)
        for ranks in some:
            with self.subTest(ranks=ranks):
                run_well(self, ranks, BUILD / "tests/mpi/mpi_small", part)

    def test_sums_of_every_size_in_two_channels(self):
        self.part("calls", (1, 2, 3, 5))

    def test_ranks_that_come_late_are_waited_for(self):
        self.part("late", (2, 4))

    def test_a_disagreement_is_a_mismatch_on_all_ranks(self):
        self.part("mismatch", (2, 3))

    def test_a_rank_that_does_not_come_is_named_and_the_next_group_is_well(self):
        self.part("timeout", (2, 3))

    def test_an_abort_ends_the_wait(self):
        self.part("abort", (2, 3))

    def test_who_is_through_may_leave(self):
        self.part("goodbye", (2, 3))


class Lent(unittest.TestCase):
    """Calls on memory that MPI works on without a copy."""

    def part(self, part, worlds):
        at_once(lambda ranks: run_well(self, ranks, BUILD / "tests/mpi/mpi_lent", part), worlds)

    def test_every_length_in_place_or_not(self):
        self.part("moves", (1, 2, 3, 4, 5))

    def test_who_gives_up_may_write_at_once(self):
        self.part("writes", (2, 3, 4))

    def test_who_gives_up_may_free_at_once(self):
        self.part("frees", (2, 3, 4))


class Python(unittest.TestCase):
    def test_python_under_mpirun(self):
        try:
            import numpy  # noqa: F401
        except ImportError:
            self.skipTest("numpy is missing")
        program = (
            "import numpy as np, trireme\n"
            "with trireme.Communicator(0, 0, 'mpi://') as c:\n"
            "    a = np.full(100000, c.rank + 1.0, np.float32)\n"
            "    c.all_reduce(a)\n"
            "    n = c.world_size\n"
            "    assert n == 3 and (a == n * (n + 1) / 2).all(), a\n"
        )
        run_well(
            self,
            3,
            sys.executable,
            "-c",
            program,
            PYTHONPATH=str(ROOT / "bindings/python"),
            TRIREME_LIBRARY=str(BUILD / "libtrireme.so.1"),
        )


def main():
    global NAME, BUILD
    NAME, BUILD = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    plugin = BUILD / f"libtrireme_mpi_{NAME}.so"
    for missing in (f"mpirun.{NAME}", plugin):
        if shutil.which(str(missing)) is None and not pathlib.Path(missing).exists():
            print(f"skipped: {NAME}: {missing} is missing")
            return 77
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
