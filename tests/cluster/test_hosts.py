#!/usr/bin/env python3
"""A job on two hosts, which are network namespaces: the bits of one host, a token that is wrong, a
link that is cut.

Usage: test_hosts.py DIGITS TRIREME [unittest arguments]
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import hosts

DIGITS = ""
TRIREME = ""
DATA = str(pathlib.Path(__file__).resolve().parents[2] / "examples/data/digits.csv.gz")
LONG = 100  # seconds; longer than anything healthy takes on a busy machine
TOKEN = "a token of the tests, which no job has"


class TwoHosts(unittest.TestCase):
    """Ranks 0 and 1 on the first host, 2 and 3 on the second."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.hosts = hosts.Hosts(2)
        self.addCleanup(self.hosts.close)

    def start(self, rank, *arguments, token=TOKEN):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "4", "TRIREME_TOKEN": token,
                       "TRIREME_RENDEZVOUS": f"tcp://{self.hosts.addresses[0]}:29500"}
        return self.hosts.popen(rank // 2, [DIGITS, "--data", DATA, *arguments], env=environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def train(self, *arguments, **settings):
        jobs = [self.start(rank, *arguments, **settings) for rank in range(4)]
        return [job.communicate(timeout=LONG) for job in jobs], [job.returncode for job in jobs]

    def parameters(self, name):
        return (pathlib.Path(self.folder.name) / name).read_bytes()

    def out(self, name):
        return ["--passes", "2", "--out", str(pathlib.Path(self.folder.name) / name)]

    def test_every_strategy_has_the_bits_of_one_process(self):
        alone = subprocess.run([DIGITS, "--data", DATA, "--threads", "1", *self.out("alone")], check=True,
                               capture_output=True, timeout=LONG)
        self.assertEqual(alone.stderr, b"")
        for strategy in ("data_parallel", "zero1", "zero2", "zero3"):
            said, codes = self.train("--strategy", strategy, *self.out(strategy))
            self.assertEqual(codes, [0] * 4, said)
            self.assertEqual(self.parameters(strategy), self.parameters("alone"), strategy)

    def test_collectives_go_over_the_hosts(self):
        operations = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"]
        jobs = []
        for rank in range(4):
            environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "4", "TRIREME_TOKEN": TOKEN,
                           "TRIREME_RENDEZVOUS": f"tcp://{self.hosts.addresses[0]}:29500"}
            jobs.append(self.hosts.popen(
                rank // 2, [TRIREME, "bench", *operations, "-n", "2", "-w", "1", "-b", "3000000",
                            "-e", "3000000", "-c", "--ranks-as", "env", "--json", "-"],
                env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
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
        self.wait_for_training(jobs)
        self.hosts.cut(1)
        for rank, job in enumerate(jobs):
            _, errors = job.communicate(timeout=LONG)
            self.assertNotEqual(job.returncode, 0)
            other_side = "[23]" if rank < 2 else "[01]"
            self.assertRegex(errors, f"rank {other_side}|ranks {other_side}")

    def test_a_host_that_dies_is_told(self):
        jobs = [self.start(rank, "--passes", "100000") for rank in range(4)]
        self.wait_for_training(jobs)
        jobs[3].kill()
        for job in jobs[:3]:
            _, errors = job.communicate(timeout=LONG)
            self.assertNotEqual(job.returncode, 0)
            self.assertIn("rank 3", errors)

    def wait_for_training(self, jobs):
        """All have computed for longer than it takes to start: they are in the middle of it."""
        for job in jobs:
            ticks = 0
            while ticks < 0.5 * os.sysconf("SC_CLK_TCK"):
                self.assertIsNone(job.poll(), "it has ended")
                fields = pathlib.Path(f"/proc/{job.pid}/stat").read_text().rsplit(")", 1)[1].split()
                ticks = int(fields[11]) + int(fields[12])


if __name__ == "__main__":
    DIGITS = sys.argv.pop(1)
    TRIREME = sys.argv.pop(1)
    why_not = hosts.missing()
    if why_not:
        print(f"skipped: {why_not}")
        sys.exit(77)
    unittest.main()
