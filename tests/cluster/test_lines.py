#!/usr/bin/env python3
"""Ranks on hosts that two networks connect: both carry bytes, and each may break.

Usage: test_lines.py LIBRARY [unittest arguments]
"""

import array
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import unittest

import hosts
from waiting import wait_until

LIBRARY = ""
BINDING = str(pathlib.Path(__file__).resolve().parents[2] / "bindings/python")
LONG = 100  # seconds; longer than anything healthy takes on a busy machine
SILENCE = 1500  # ms
PORT = 29500
BYTES = 4 << 20  # of each operation
COUNT = BYTES // 4


def values(rank):
    """Small integers in f32: their sums are exact, and depend on no order."""
    return array.array("f", [(index * 7 + rank * 13) % 251 for index in range(COUNT)])


def oracle(world):
    """The right result of each operation, by name. It needs no library."""
    each = [values(rank) for rank in range(world)]
    total = array.array("f", [sum(column) for column in zip(*each)])
    gathered = array.array("f")
    for one in each:
        gathered.extend(one)
    return {"all_reduce": total, "all_gather": gathered, "broadcast": each[world - 1]}


def digest(data):
    return hashlib.sha256(data.tobytes()).hexdigest()


def operations(group):
    """The digest of each operation's result, by name."""
    mine = values(group.rank)
    total = array.array("f", mine)
    group.all_reduce(total)
    gathered = array.array("f", [0]) * (COUNT * group.world_size)
    group.all_gather(mine, gathered)
    given = array.array("f", mine)
    group.broadcast(given, root=group.world_size - 1)
    return {
        "all_reduce": digest(total),
        "all_gather": digest(gathered),
        "broadcast": digest(given),
    }


def exchange(group):
    """Whether each rank got its long block from each other one."""
    each = COUNT // group.world_size
    given = array.array(
        "f", [group.rank * 100 + index // each for index in range(each * group.world_size)]
    )
    got = array.array("f", [0]) * len(given)
    group.all_to_all(given, got)
    return got == array.array("f", [index // each * 100 + group.rank for index in range(len(got))])


def work(rank, world, forever):
    """One rank: says its backend and what its operations gave. Then it may go on until one fails."""
    import trireme

    with trireme.Communicator(
        rank, world, os.environ["TRIREME_RENDEZVOUS"], backend="frames", timeout=LONG
    ) as group:
        if forever == 2:
            right = [exchange(group) for _ in range(3)]
            time.sleep(8)  # the lines that cannot be made have been tried by then
            print(json.dumps({"right": right + [exchange(group)]}), flush=True)
            return
        print(json.dumps({"results": operations(group), "backend": group.backend}), flush=True)
        if not forever:
            return
        data = array.array("f", [0]) * COUNT
        try:
            while True:
                group.all_reduce(data)
        except trireme.TriremeError as error:
            said = {"kind": type(error).__name__, "blamed": list(error.blamed), "text": str(error)}
            print(json.dumps(said), flush=True)


class Lines(unittest.TestCase):
    def setUp(self):
        self.hosts = hosts.Hosts(2, links=2)
        self.addCleanup(self.hosts.close)

    def start(self, rank, interfaces, world=2, forever=0, more="", **settings):
        environment = {
            **os.environ,
            "TRIREME_LOG": "warning",
            "TRIREME_LIBRARY": LIBRARY,
            "TRIREME_TOKEN": "a token of the tests, which no job has",
            "TRIREME_RENDEZVOUS": f"tcp://{self.hosts.addresses[0]}:{PORT}?silence_ms={SILENCE}"
            f"&host={rank}&interface={interfaces}{more}",
        }
        command = [sys.executable, __file__, "--rank", str(rank), str(world), str(int(forever))]
        return self.hosts.popen(
            rank % 2, command, env=environment, text=True, stdout=subprocess.PIPE, **settings
        )

    def said(self, job):
        line = job.stdout.readline()
        self.assertTrue(line, "the rank has ended without a word")
        return json.loads(line)

    def run_all(self, interfaces):
        """The backend of each rank, by its own word. The ranks have these interfaces, and end well."""
        jobs = [self.start(rank, each, len(interfaces)) for rank, each in enumerate(interfaces)]
        said = [self.said(job) for job in jobs]
        for job in jobs:
            self.assertEqual(job.wait(LONG), 0)
        expected = {name: digest(data) for name, data in oracle(len(interfaces)).items()}
        for each in said:
            self.assertEqual(each["results"], expected)
        return [each["backend"] for each in said]

    def sent(self):
        """By host and network."""
        return [[self.hosts.sent_bytes(host, link) for link in (0, 1)] for host in (0, 1)]

    def test_both_networks_carry_bytes(self):
        before = self.sent()
        backends = self.run_all(["eth0,eth1"] * 2)
        after = self.sent()
        self.assertEqual(backends, ["frames (tcp, 2 lines)"] * 2)
        for host in (0, 1):
            for link in (0, 1):
                self.assertGreater(after[host][link] - before[host][link], BYTES / 2)

    def test_one_network_is_as_before(self):
        before = self.sent()
        backends = self.run_all(["eth0"] * 2)
        after = self.sent()
        self.assertEqual(backends, ["frames (tcp)"] * 2)
        for host in (0, 1):
            self.assertLess(after[host][1] - before[host][1], 10_000)
            self.assertGreater(after[host][0] - before[host][0], BYTES)

    def test_ranks_may_have_different_numbers_of_networks(self):
        backends = self.run_all(["eth0,eth1", "eth0", "eth0,eth1"])
        self.assertEqual(
            backends,
            ["frames (tcp, 1 to 2 lines)", "frames (tcp)", "frames (tcp, 1 to 2 lines)"],
        )

    def check_cut(self, link):
        jobs = [self.start(rank, "eth0,eth1", forever=True) for rank in range(2)]
        for job in jobs:
            self.said(job)
        self.hosts.cut(1, link)
        said = [self.said(job) for job in jobs]
        for each in said:
            self.assertEqual(each["kind"], "PeerLostError", said)
        for job in jobs:
            self.assertEqual(job.wait(LONG), 0)
        return said

    def test_a_cut_first_network_is_a_loss(self):
        said = self.check_cut(0)
        self.assertEqual([each["blamed"] for each in said], [[1], [0]], said)

    def test_a_cut_further_network_is_a_loss(self):
        """The ranks still reach each other. They name the rank that one of them has missed first, or
        each other if both are as fast."""
        said = self.check_cut(1)
        blamed = [each["blamed"] for each in said]
        self.assertIn(blamed, [[[0], [0]], [[1], [1]], [[1], [0]]], said)
        for each in said:
            self.assertRegex(each["text"], r"line 1 to 10\.77\.1\.[12]:\d+ answered for no bytes")

    def test_a_network_that_leads_nowhere_is_named(self):
        self.hosts.cut(1, 1)
        jobs = [self.start(rank, "eth0,eth1", stderr=subprocess.PIPE) for rank in range(2)]
        errors = [job.communicate(timeout=LONG)[1] for job in jobs]
        self.assertNotIn(0, [job.returncode for job in jobs])
        self.assertRegex(" ".join(errors), r"line 1 from 10\.77\.1\.2.* to rank 0 at 10\.77\.1\.1:")

    def test_few_connections_do_without_a_network_that_leads_nowhere(self):
        """Only ranks 0 and 3, which are not near, have a second network, and it is cut. Rank 3
        calls, and its log names rank 0 and the interface. All bytes take the first network."""
        self.hosts.cut(1, 1)
        jobs = [
            self.start(
                rank,
                "eth0,eth1" if rank in (0, 3) else "eth0",
                world=6,
                forever=2,
                more="&connections=few",
                stderr=subprocess.PIPE,
            )
            for rank in range(6)
        ]
        outputs = [job.communicate(timeout=LONG) for job in jobs]
        self.assertEqual([job.returncode for job in jobs], [0] * 6, outputs)
        for said, _ in outputs:
            self.assertEqual(json.loads(said)["right"], [True] * 4)
        for rank, (_, errors) in enumerate(outputs):
            told = re.findall(r"line 1 from 10\.77\.1\.2\S* \(eth1\) to rank 0 at ", errors)
            self.assertEqual(len(told) > 0, rank == 3, errors)

    def test_the_doctor_shows_the_lines_of_each_pair(self):
        jobs = []
        for rank, interfaces in enumerate(["eth0,eth1", "eth0,eth1", "eth0"]):
            where = f"tcp://{self.hosts.addresses[0]}:{PORT}?host={rank}&interface={interfaces}"
            command = [
                str(pathlib.Path(LIBRARY).parent / "trireme"),
                "doctor",
                "--json",
                "--connect",
                where,
                "--rank",
                str(rank),
            ]
            environment = {**os.environ, "TRIREME_TOKEN": "a token of the tests, which no job has"}
            jobs.append(
                self.hosts.popen(
                    rank % 2,
                    [*command, "--world-size", "3"],
                    env=environment,
                    text=True,
                    stdout=subprocess.PIPE,
                )
            )
        told = [json.loads(job.communicate(timeout=LONG)[0])["connection"] for job in jobs]
        self.assertTrue(
            told[0]["rank 0 and rank 1"]["value"].endswith(
                "; line 0 eth0 to eth0, line 1 eth1 to eth1"
            )
        )
        for pair in ("rank 0 and rank 2", "rank 1 and rank 2"):
            self.assertTrue(told[0][pair]["value"].endswith("; line 0 eth0 to eth0"))

    def test_an_unknown_interface_is_named(self):
        job = self.start(0, "eth0,eth7", stderr=subprocess.PIPE)
        _, errors = job.communicate(timeout=LONG)
        self.assertNotEqual(job.returncode, 0)
        self.assertIn('no interface "eth7"', errors)

    def test_a_stranger_at_the_second_network_does_no_harm(self):
        first = self.start(0, "eth0,eth1")

        def port():
            said = self.hosts.run(0, ["ss", "-ltnH"], capture_output=True, text=True)
            return re.search(r"10\.77\.1\.1:(\d+)", said.stdout)

        wait_until(port, "the second address")
        program = (
            "import socket, sys; made = socket.create_connection(('10.77.1.1', int(sys.argv[1])));"
            "made.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n' * 20); made.settimeout(60)\n"
            "try: sys.exit(len(made.recv(1)))\n"
            "except ConnectionResetError: pass"
        )
        stranger = [sys.executable, "-c", program, port().group(1)]
        for _ in range(3):
            self.assertEqual(self.hosts.run(1, stranger).returncode, 0)
        second = self.start(1, "eth0,eth1")
        expected = {name: digest(data) for name, data in oracle(2).items()}
        for job in (first, second):
            self.assertEqual(self.said(job)["results"], expected)
            self.assertEqual(job.wait(LONG), 0)


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        sys.path.insert(0, BINDING)
        work(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
        sys.exit(0)
    LIBRARY = sys.argv.pop(1)
    why_not = hosts.missing()
    if why_not:
        print(f"skipped: {why_not}")
        sys.exit(77)
    unittest.main()
