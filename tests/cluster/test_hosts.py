#!/usr/bin/env python3
"""A job on two hosts, which are network namespaces: the bits of one host, a token that is wrong, a
link that is cut.

Usage: test_hosts.py DIGITS TRIREME [unittest arguments]
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

import hosts

DIGITS = ""
TRIREME = ""
DATA = str(pathlib.Path(__file__).resolve().parents[2] / "examples/data/digits.csv.gz")
LONG = 100  # seconds; longer than anything healthy takes on a busy machine
TOKEN = "a token of the tests, which no job has"


class OnHosts(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.hosts = hosts.Hosts(2)
        self.addCleanup(self.hosts.close)

    def parameters(self, name):
        return (pathlib.Path(self.folder.name) / name).read_bytes()

    def out(self, name):
        return ["--passes", "2", "--out", str(pathlib.Path(self.folder.name) / name)]

    def train_alone(self):
        alone = subprocess.run(
            [DIGITS, "--data", DATA, "--threads", "1", *self.out("alone")],
            check=True,
            capture_output=True,
            timeout=LONG,
        )
        self.assertEqual(alone.stderr, b"")
        return self.parameters("alone")

    def wait_until_they_compute(self, pids):
        """For longer than it takes to start: they are in the middle of it."""
        for pid in pids:
            ticks = 0
            while ticks < 0.5 * os.sysconf("SC_CLK_TCK"):
                try:
                    text = pathlib.Path(f"/proc/{pid}/stat").read_text()
                except FileNotFoundError:
                    self.fail("it has ended")
                fields = text.rsplit(")", 1)[1].split()
                self.assertNotIn(fields[0], "ZX", "it has ended")
                ticks = int(fields[11]) + int(fields[12])


class TwoHosts(OnHosts):
    """Ranks 0 and 1 on the first host, 2 and 3 on the second."""

    def start(self, rank, *arguments, token=TOKEN):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": "4",
            "TRIREME_TOKEN": token,
            "TRIREME_RENDEZVOUS": f"tcp://{self.hosts.addresses[0]}:29500",
        }
        return self.hosts.popen(
            rank // 2,
            [DIGITS, "--data", DATA, *arguments],
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def train(self, *arguments, **settings):
        jobs = [self.start(rank, *arguments, **settings) for rank in range(4)]
        return [job.communicate(timeout=LONG) for job in jobs], [job.returncode for job in jobs]

    def test_every_strategy_has_the_bits_of_one_process(self):
        alone = self.train_alone()
        for strategy in ("data_parallel", "zero1", "zero2", "zero3"):
            said, codes = self.train("--strategy", strategy, *self.out(strategy))
            self.assertEqual(codes, [0] * 4, said)
            self.assertEqual(self.parameters(strategy), alone, strategy)

    def test_collectives_go_over_the_hosts(self):
        operations = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"]
        jobs = []
        for rank in range(4):
            environment = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "4",
                "TRIREME_TOKEN": TOKEN,
                "TRIREME_RENDEZVOUS": f"tcp://{self.hosts.addresses[0]}:29500",
            }
            jobs.append(
                self.hosts.popen(
                    rank // 2,
                    [
                        TRIREME,
                        "bench",
                        *operations,
                        "-n",
                        "2",
                        "-w",
                        "1",
                        "-b",
                        "3000000",
                        "-e",
                        "3000000",
                        "-c",
                        "--ranks-as",
                        "env",
                        "--json",
                        "-",
                    ],
                    env=environment,
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )
        said = [job.communicate(timeout=LONG) for job in jobs]
        self.assertEqual([job.returncode for job in jobs], [0] * 4, said)
        data = json.loads(said[0][0])
        self.assertEqual(data["backend"], "hierarchical (2 hosts x 2)")
        self.assertEqual([row["operation"] for row in data["rows"]], operations)
        for row in data["rows"]:
            form = row.get("in_place") or row["out_of_place"]
            self.assertEqual(form["wrong"], 0, row)

    def test_a_wrong_token_is_refused_and_named(self):
        jobs = [self.start(rank, "--passes", "1") for rank in range(3)]
        stranger = self.start(3, "--passes", "1", token=TOKEN + "?")
        _, errors = stranger.communicate(timeout=LONG)
        self.assertNotEqual(stranger.returncode, 0)
        self.assertIn("token", errors)
        # The others still wait for the rank itself.
        self.assertEqual([job.poll() for job in jobs], [None] * 3)
        last = self.start(3, "--passes", "1")
        for job in [*jobs, last]:
            _, errors = job.communicate(timeout=LONG)
            self.assertEqual(job.returncode, 0, errors)

    def test_a_cut_link_is_told_on_both_sides(self):
        jobs = [self.start(rank, "--passes", "100000") for rank in range(4)]
        self.wait_until_they_compute(job.pid for job in jobs)
        self.hosts.cut(1)
        for rank, job in enumerate(jobs):
            _, errors = job.communicate(timeout=LONG)
            self.assertNotEqual(job.returncode, 0)
            other_side = "[23]" if rank < 2 else "[01]"
            self.assertRegex(errors, f"rank {other_side}|ranks {other_side}")

    def test_a_host_that_dies_is_told(self):
        jobs = [self.start(rank, "--passes", "100000") for rank in range(4)]
        self.wait_until_they_compute(job.pid for job in jobs)
        jobs[3].kill()
        for job in jobs[:3]:
            _, errors = job.communicate(timeout=LONG)
            self.assertNotEqual(job.returncode, 0)
            self.assertIn("rank 3", errors)


class Agents(OnHosts):
    """trireme run on each host, with two workers."""

    def agent(self, host, *arguments, options=(), token=TOKEN):
        environment = {**os.environ, "TRIREME_TOKEN": token}
        return self.hosts.popen(
            host,
            [
                TRIREME,
                "run",
                "--nnodes",
                "2",
                "--nproc-per-node",
                "2",
                "--rdzv-endpoint",
                f"{self.hosts.addresses[0]}:29400",
                *options,
                "--",
                DIGITS,
                "--data",
                DATA,
                *arguments,
            ],
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def end(self, agent):
        output, error = agent.communicate(timeout=LONG)
        return agent.returncode, output, error

    def workers(self):
        """The numbers of the four processes that train this test's data, once they do. A child of
        theirs that unpacks the data looks like them for a moment, but no supervisor is its parent."""

        def found():
            pids = []
            for process in pathlib.Path("/proc").glob("[0-9]*"):
                try:
                    words = (process / "cmdline").read_bytes().split(b"\0")
                    if (
                        words[0] != os.fsencode(DIGITS)
                        or os.fsencode(self.folder.name) not in words
                    ):
                        continue
                    parent = (process / "stat").read_text().rsplit(")", 1)[1].split()[1]
                    if b"supervisor" in pathlib.Path("/proc", parent, "cmdline").read_bytes().split(
                        b"\0"
                    ):
                        pids.append(int(process.name))
                except OSError:
                    pass  # it has ended
            return pids

        end = time.monotonic() + LONG
        while len(found()) < 4:
            self.assertLess(time.monotonic(), end, "workers have not come")
            time.sleep(0.02)
        return found()

    def train_for_long(self, *options):
        arguments = ["--passes", "1000000", "--out", self.folder.name]
        agents = [self.agent(host, *arguments, options=options) for host in range(2)]
        pids = self.workers()
        self.wait_until_they_compute(pids)
        return agents, pids

    def assert_all_gone(self, pids):
        end = time.monotonic() + LONG
        while any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids):
            self.assertLess(time.monotonic(), end, "a worker is left")
            time.sleep(0.02)

    def test_every_strategy_has_the_bits_of_one_process(self):
        alone = self.train_alone()
        for strategy in ("data_parallel", "zero1", "zero2", "zero3"):
            agents = [
                self.agent(host, "--strategy", strategy, *self.out(strategy)) for host in (1, 0)
            ]
            for agent in agents:
                code, output, error = self.end(agent)
                self.assertEqual((code, error), (0, ""), output)
            self.assertEqual(self.parameters(strategy), alone, strategy)

    def test_a_wrong_token_is_refused_and_named_while_the_other_host_waits(self):
        first = self.agent(0, "--passes", "1")
        code, _, error = self.end(self.agent(1, "--passes", "1", token=TOKEN + "?"))
        self.assertEqual(code, 1)
        self.assertIn(
            f"the agent at {self.hosts.addresses[0]}:29400 does not know the token", error
        )
        self.assertIsNone(first.poll())
        self.assertEqual(self.end(self.agent(1, "--passes", "1"))[0], 0)
        code, _, error = self.end(first)
        self.assertEqual(code, 0)
        self.assertIn(f"a caller from {self.hosts.addresses[1]} does not know the token", error)

    def test_a_cut_link_is_told_on_both_sides_and_ends_both(self):
        agents, pids = self.train_for_long("--rdzv-conf", "silence_timeout=3")
        self.hosts.cut(1)
        words = (
            r"the agent of node 1 on \S+ \(ranks 2 to 3\) is lost: it has given no sign of life for 3 s",
            rf"the agent at {re.escape(self.hosts.addresses[0])}:29400, which coordinates the job, "
            "is lost: it has given no sign of life for 3 s",
        )
        for agent, pattern in zip(agents, words):
            code, _, error = self.end(agent)
            self.assertEqual(code, 1)
            self.assertRegex(error.splitlines()[-1], "^trireme: " + pattern + "$")
        self.assert_all_gone(pids)

    def test_kill_9_of_an_agent_ends_its_workers_and_the_job(self):
        agents, pids = self.train_for_long()
        agents[1].kill()
        code, _, error = self.end(agents[0])
        self.assertEqual(code, 1)
        self.assertIn("(ranks 2 to 3) is lost: its connection has ended", error.splitlines()[-1])
        self.assert_all_gone(pids)


if __name__ == "__main__":
    DIGITS = sys.argv.pop(1)
    TRIREME = sys.argv.pop(1)
    why_not = hosts.missing()
    if why_not:
        print(f"skipped: {why_not}")
        sys.exit(77)
    unittest.main()
