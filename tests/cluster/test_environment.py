#!/usr/bin/env python3
"""env:// without trireme run: where the ranks meet, by what other launchers say, on one host and on
two, which are network namespaces.

Usage: test_environment.py LIBRARY [unittest arguments]
"""

import json
import os
import pathlib
import subprocess
import sys
import unittest

import hosts

LIBRARY = ""
LONG = 100  # seconds; longer than anything healthy takes on a busy machine
TOKEN = "a token of the tests, which no job has"
SPOKEN = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "NNODES",
    "MASTER_",
    "TRIREME_",
    "OMPI_",
    "PMI_",
    "MPI_",
    "SLURM_",
    "TORCHELASTIC_",
)


def work():
    """One rank: adds its number to those of the others, and says what it came to."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bindings/python"))
    import array

    import trireme

    try:
        with trireme.Communicator.from_environment(timeout=60) as group:
            values = array.array("q", [1 << group.rank])
            group.all_reduce(values)
            said = {"sum": values[0], "backend": group.backend}
    except trireme.TriremeError as error:
        said = {"error": str(error), "kind": type(error).__name__}
    print(json.dumps(said))


def environment(**variables):
    """Nothing that a launcher of this test itself has said."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(SPOKEN)}
    return {**clean, "TRIREME_LIBRARY": LIBRARY, **{k: str(v) for k, v in variables.items()}}


def rank_of(start, **variables):
    return start(
        [sys.executable, __file__, "work"],
        env=environment(**variables),
        text=True,
        stdout=subprocess.PIPE,
    )


def answer(job):
    output, _ = job.communicate(timeout=LONG)
    return json.loads(output)


def alone(**variables):
    """The values of one process that needs no peer."""
    return answer(rank_of(subprocess.Popen, **variables))


class OnTwoHosts(unittest.TestCase):
    """Ranks 0 and 1 on the first host, 2 and 3 on the second."""

    def setUp(self):
        why_not = hosts.missing()
        if why_not:
            self.skipTest(why_not)
        self.hosts = hosts.Hosts(2)
        self.addCleanup(self.hosts.close)
        self.master = {"MASTER_ADDR": self.hosts.addresses[0], "MASTER_PORT": 29511}

    def meet(self, variables_of):
        jobs = [
            rank_of(lambda *a, **k: self.hosts.popen(rank // 2, *a, **k), **variables_of(rank))
            for rank in range(4)
        ]
        return [answer(job) for job in jobs]

    def assert_met(self, said):
        self.assertEqual(said, [{"sum": 15, "backend": "hierarchical (2 hosts x 2)"}] * 4)

    def test_five_variables_and_a_token_are_enough(self):
        self.assert_met(
            self.meet(
                lambda rank: {
                    "RANK": rank,
                    "WORLD_SIZE": 4,
                    "LOCAL_RANK": rank % 2,
                    "TRIREME_TOKEN": TOKEN,
                    **self.master,
                }
            )
        )

    def test_what_torchrun_says_is_enough_and_its_own_port_is_left_to_it(self):
        agent = self.hosts.popen(
            0,
            [
                sys.executable,
                "-c",
                f"""
import socket, time
store = socket.create_server(("{self.hosts.addresses[0]}", 29511))
print("listens", flush=True)
time.sleep({LONG})""",
            ],
            text=True,
            stdout=subprocess.PIPE,
        )
        self.assertEqual(agent.stdout.readline(), "listens\n")
        self.assert_met(
            self.meet(
                lambda rank: {
                    "RANK": rank,
                    "WORLD_SIZE": 4,
                    "LOCAL_RANK": rank % 2,
                    "LOCAL_WORLD_SIZE": 2,
                    "GROUP_RANK": rank // 2,
                    "GROUP_WORLD_SIZE": 2,
                    "TRIREME_TOKEN": TOKEN,
                    "TORCHELASTIC_USE_AGENT_STORE": "True",
                    **self.master,
                }
            )
        )

    def test_what_srun_says_is_enough(self):
        self.assert_met(
            self.meet(
                lambda rank: {
                    "SLURM_PROCID": rank,
                    "SLURM_NTASKS": 4,
                    "SLURM_LOCALID": rank % 2,
                    "SLURM_NNODES": 2,
                    "TRIREME_TOKEN": TOKEN,
                    **self.master,
                }
            )
        )

    def test_what_mpirun_says_beside_a_master_is_enough(self):
        self.assert_met(
            self.meet(
                lambda rank: {
                    "OMPI_COMM_WORLD_RANK": rank,
                    "OMPI_COMM_WORLD_SIZE": 4,
                    "OMPI_COMM_WORLD_LOCAL_SIZE": 2,
                    "TRIREME_TOKEN": TOKEN,
                    **self.master,
                }
            )
        )


class Refusals(unittest.TestCase):
    PLACE = {
        "RANK": 2,
        "WORLD_SIZE": 4,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": 29511,
        "TRIREME_TOKEN": TOKEN,
    }

    def assert_refused(self, words, kind="InvalidArgumentError", **variables):
        said = alone(**variables)
        self.assertEqual(said.get("kind"), kind, said)
        for word in words:
            self.assertIn(word, said["error"])

    def test_a_master_that_leads_each_host_to_itself_is_refused_where_there_are_several(self):
        for host, variable, value, said in (
            ("127.0.0.1", "LOCAL_WORLD_SIZE", 2, "LOCAL_WORLD_SIZE is 2 of 4 ranks"),
            ("localhost", "GROUP_WORLD_SIZE", 2, "GROUP_WORLD_SIZE is 2"),
            ("::1", "NNODES", 2, "NNODES is 2"),
            ("127.0.0.1", "LOCAL_RANK", 0, "LOCAL_RANK is 0 of rank 2"),
        ):
            self.assert_refused(
                [f"MASTER_ADDR is {host}", said, "an address of the host of rank 0"],
                **{**self.PLACE, "MASTER_ADDR": host, variable: value},
            )

    def test_a_token_that_is_missing_is_said_with_the_line_that_makes_one(self):
        line = "(umask 077; head -c 32 /dev/urandom | base64 > token); export TRIREME_TOKEN_FILE="
        place = {**self.PLACE, "TRIREME_TOKEN": ""}
        self.assert_refused(["TRIREME_TOKEN", line], **place)
        self.assert_refused(
            ["TRIREME_TOKEN", line],
            kind="AuthenticationError",
            **{**place, "MASTER_ADDR": "10.77.0.1"},
        )

    def test_without_a_launcher_the_command_to_type_is_said(self):
        self.assert_refused(
            [
                "env:// needs the variable RANK",
                "trireme run --nproc-per-node 2 -- " + sys.executable,
                "work",
            ]
        )

    def test_a_master_that_srun_does_not_name_is_said_with_the_line_that_does(self):
        self.assert_refused(
            ["MASTER_ADDR", "scontrol show hostnames"],
            SLURM_PROCID=0,
            SLURM_NTASKS=2,
            TRIREME_TOKEN=TOKEN,
        )


class Log(unittest.TestCase):
    def test_what_the_library_says_goes_to_stderr_if_the_environment_asks_for_it(self):
        for level, pattern in (
            (None, "^$"),
            ("warning", "^$"),
            ("loud", "^$"),
            ("info", "^(trireme: info: .*\n)+$"),
        ):
            variables = {} if level is None else {"TRIREME_LOG": level}
            done = subprocess.run(
                [sys.executable, __file__, "work"],
                capture_output=True,
                text=True,
                timeout=LONG,
                check=True,
                env=environment(
                    RANK=0,
                    WORLD_SIZE=1,
                    MASTER_ADDR="localhost",
                    MASTER_PORT=29511,
                    TRIREME_TOKEN=TOKEN,
                    **variables,
                ),
            )
            self.assertRegex(done.stderr, pattern)
            self.assertIn('"sum": 1', done.stdout)


class OnOneHost(unittest.TestCase):
    def meet(self, **variables):
        port = 20000 + os.getpid() % 10000
        jobs = [
            rank_of(
                subprocess.Popen,
                RANK=rank,
                WORLD_SIZE=2,
                MASTER_PORT=port,
                TRIREME_TOKEN=TOKEN,
                **variables,
            )
            for rank in range(2)
        ]
        said = [answer(job) for job in jobs]
        self.assertEqual([each.get("sum") for each in said], [3, 3], said)
        return said[0]["backend"]

    def test_ranks_of_one_host_share_its_memory(self):
        for variables in (
            {"MASTER_ADDR": "127.0.0.1"},
            {"MASTER_ADDR": "localhost"},
            {"MASTER_ADDR": "a-name-that-is-only-text", "LOCAL_WORLD_SIZE": 2},
            {"MASTER_ADDR": "10.77.0.1", "GROUP_WORLD_SIZE": 1},
        ):
            self.assertEqual(self.meet(**variables), "local (processes)")


if __name__ == "__main__":
    if sys.argv[1:] == ["work"]:
        work()
    else:
        LIBRARY = os.path.abspath(sys.argv.pop(1))
        unittest.main(verbosity=2)
