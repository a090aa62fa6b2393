#!/usr/bin/env python3
"""Hosts that no longer reach each other, in the middle of the work of three ranks: the larger side
shrinks and goes on, the smaller one is told that it cannot, and stays out when the hosts meet again.

Usage: test_partition.py LIBRARY [unittest arguments]
"""

import array
import json
import os
import pathlib
import subprocess
import sys
import unittest

import hosts

LIBRARY = ""
BINDING = str(pathlib.Path(__file__).resolve().parents[2] / "bindings/python")
LONG = 100  # seconds; longer than anything healthy takes on a busy machine
SILENCE = 2000  # ms


def work(rank):
    """One rank: adds until that fails, shrinks, and adds again. Says what it came to."""
    import trireme

    rendezvous = os.environ["TRIREME_RENDEZVOUS"]
    backend = os.environ.get("BACKEND") or None
    with trireme.Communicator(rank, 3, rendezvous, backend=backend, timeout=LONG) as group:
        values = array.array("q", [0]) * 5000
        try:
            for step in range(10**9):
                group.all_reduce(values)
                if step == 100:
                    print("works", flush=True)
        except trireme.PeerLostError as error:
            said = {"lost": list(error.blamed)}
        for _ in range(8):
            try:
                with group.shrink() as smaller:
                    mine = array.array("q", [1 << smaller.ranks[smaller.rank]]) * 5000
                    smaller.all_reduce(mine)
                    said.update(ranks=list(smaller.ranks), sums=sorted(set(mine)))
                break
            except trireme.PeerLostError as error:
                said["refused"] = str(error)
                if not error.try_again:
                    break
        print(json.dumps(said), flush=True)
        sys.stdin.readline()  # until the hosts reach each other again
        try:
            again = group.agree(1)
        except trireme.TriremeError as error:
            again = str(error)
        print(json.dumps(again), flush=True)


def offers_gloo():
    """By the library's own word, in a process that ends: this one must not use it."""
    program = "import sys, trireme; sys.exit(0 if trireme.supports(backend='gloo') else 7)"
    environment = {**os.environ, "TRIREME_LIBRARY": LIBRARY, "PYTHONPATH": BINDING}
    code = subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode
    if code not in (0, 7):
        raise RuntimeError(f"the library tells no capability: code {code}")
    return code == 0


class Partition(unittest.TestCase):
    def run_apart(self, places, backend=""):
        """Each rank's words, by rank, when the second host was cut off, and later."""
        with hosts.Hosts(2) as machines:
            jobs = []
            for rank, place in enumerate(places):
                environment = {
                    **os.environ,
                    "TRIREME_LIBRARY": LIBRARY,
                    "BACKEND": backend,
                    "TRIREME_TOKEN": "a token of the tests, which no job has",
                    "TRIREME_RENDEZVOUS": f"tcp://{machines.addresses[0]}:29500/apart"
                    f"?silence_ms={SILENCE}",
                }
                jobs.append(
                    machines.popen(
                        place,
                        [sys.executable, __file__, "--rank", str(rank)],
                        env=environment,
                        text=True,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                    )
                )
            for job in jobs:
                self.assertEqual(job.stdout.readline(), "works\n")
            machines.cut(1)
            said = [json.loads(job.stdout.readline()) for job in jobs]
            machines.heal(1)
            later = []
            for job in jobs:
                job.stdin.write("\n")
                job.stdin.flush()
            for job in jobs:
                later.append(json.loads(job.stdout.readline()))
                self.assertEqual(job.wait(LONG), 0)
            return said, later

    def check(self, places, backend=""):
        said, later = self.run_apart(places, backend)
        larger = [rank for rank in range(3) if places.count(places[rank]) == 2]
        for rank in range(3):
            beyond = [other for other in range(3) if places[other] != places[rank]]
            self.assertIn(said[rank]["lost"][0], beyond, said)
            if rank in larger:
                self.assertEqual(said[rank]["ranks"], larger, said)
                self.assertEqual(said[rank]["sums"], [sum(1 << each for each in larger)], said)
                self.assertEqual(later[rank], 1, later)
            else:
                self.assertNotIn("ranks", said[rank], said)
                self.assertIn("no majority", said[rank]["refused"], said)
                self.assertIn("no majority", later[rank], later)

    def test_ranks_beside_the_first_go_on(self):
        self.check([0, 0, 1])

    def test_ranks_that_lost_the_first_and_where_they_met_go_on(self):
        self.check([0, 1, 1])

    def test_it_is_the_same_with_gloo(self):
        if not offers_gloo():
            self.skipTest("Gloo is not installed")
        self.check([0, 1, 1], "gloo")


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        sys.path.insert(0, BINDING)
        work(int(sys.argv[2]))
        sys.exit(0)
    LIBRARY = sys.argv.pop(1)
    why_not = hosts.missing()
    if why_not:
        print(f"skipped: {why_not}")
        sys.exit(77)
    unittest.main()
