#!/usr/bin/env python3
"""Every port that the library or the command opens: strangers get nothing there, cost little and keep no
rank out. And ports that are taken, were used a moment ago, or belong to an address that is a name.

Usage: test_strangers.py TRIREME [unittest arguments]
"""

import os
import pathlib
import random
import re
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from waiting import LONG, end_now, wait_until

TRIREME = ""
TOKEN = "a token of the tests, which no job has"
QUICK = "TRIREME_TEST_QUICK" in os.environ
IS_LONG = "TRIREME_TEST_LONG" in os.environ
CALLS = 50 if QUICK else 20000 if IS_LONG else 500  # of strangers, at the ports of one kind
JOINS = 1 if QUICK else 20 if IS_LONG else 3
MOST_GROWN = 16 << 20  # bytes
HELLO = b"trireme\n" + bytes(96)  # as long as one of ours, and begins as it does
WORDS = (
    b"",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\xff" * 4000,
    b"\0\0\0\x01" + b"\xff" * 8 + b"\0" * 7,
    HELLO,
    HELLO[:50],
    HELLO * 3,
)
STORE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
store = ctypes.c_void_p()
assert library.trireme_store_serve(sys.argv[2].encode(), None, ctypes.byref(store)) == 0
print("serves", flush=True)
sys.stdin.read()
"""
ASK = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
store, total = ctypes.c_void_p(), ctypes.c_int64()
assert library.trireme_store_connect(sys.argv[2].encode(), None, ctypes.byref(store)) == 0
assert library.trireme_store_add(store, b"n", ctypes.c_int64(1), ctypes.byref(total)) == 0
"""
report = []
number = 0


def new_place():
    """An address of the loopback and a port that no other program has."""
    global number
    number += 1
    return (
        f"127.{100 + os.getpid() % 100}.{os.getpid() // 100 % 200}.{1 + number % 250}",
        21000 + number,
    )


def ports_of(pid):
    """The addresses and ports at which a process listens."""
    inodes = set()
    for descriptor in pathlib.Path(f"/proc/{pid}/fd").glob("*"):
        try:
            inodes.add(os.readlink(descriptor))
        except OSError:
            pass  # closed meanwhile
    found = []
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
            address, port = words[1].split(":")
            found.append((socket.inet_ntoa(struct.pack("<I", int(address, 16))), int(port, 16)))
    return sorted(found)


def resident(pid):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", text).group(1)) << 10


class Strangers:
    """Call at ports, say nonsense and stay, until they are told to end; the last ones stay longest."""

    def __init__(self, ports, calls):
        self.over = threading.Event()
        self.done = threading.Event()
        self.made = 0
        self.thread = threading.Thread(target=self.call, args=(ports, calls))
        self.thread.start()

    def call(self, ports, calls):
        draw = random.Random(4711)
        kept = []
        while not self.over.is_set():
            try:
                stranger = socket.create_connection(ports[self.made % len(ports)], timeout=1)
                stranger.setblocking(False)
                stranger.send(draw.choice(WORDS) or b"")
                if draw.random() < 0.2:  # half a word, and a reset
                    stranger.setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                    )
                    stranger.close()
                else:
                    kept.append(stranger)
            except OSError:
                pass  # a group that is complete listens no more
            self.made += 1
            while len(kept) > 200:
                kept.pop(0).close()
            if self.made >= calls:
                self.done.set()
                self.over.wait(0.002)
        for stranger in kept:
            stranger.close()

    def end(self):
        self.over.set()
        self.thread.join()


class Jobs(unittest.TestCase):
    def start(self, program, token=TOKEN, **variables):
        job = subprocess.Popen(
            program,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TRIREME_TOKEN": token, **variables},
        )
        self.addCleanup(end_now, job)
        return job

    def rank(self, rank, size, place, *options, **settings):
        return self.start(
            [TRIREME, "bench", "barrier", "-n", "2", "-w", "1", *options, "--ranks-as", "env"],
            RANK=str(rank),
            WORLD_SIZE=str(size),
            TRIREME_RENDEZVOUS=place,
            **settings,
        )

    def ends_well(self, job):
        output, error = job.communicate(timeout=LONG)
        self.assertEqual(job.returncode, 0, output + error)
        return error


class Ports(Jobs):
    """Each kind: the ranks that wait, the listeners, the number of ports, and the rank that comes last."""

    def coordinator(self, address, port):
        def agent():
            return self.start(
                [
                    TRIREME,
                    "run",
                    "--nnodes",
                    "2",
                    "--nproc-per-node",
                    "1",
                    "--rdzv-endpoint",
                    f"{address}:{port}",
                    "--",
                    "true",
                ]
            )

        return [agent()], [1], agent

    def ranks(self, address, port, *options):
        place = f"tcp://{address}:{port}?interface={address}"
        waiting = [self.rank(rank, 3, place, *options) for rank in range(2)]
        return waiting, [2, 1], lambda: self.rank(2, 3, place, *options)

    def ranks_of_gloo(self, address, port):
        return self.ranks(address, port, "--backend", "gloo")

    def store(self, address, port):
        library = str(pathlib.Path(TRIREME).parent / "libtrireme.so.1")
        url = f"tcp://{address}:{port}"
        server = self.start([sys.executable, "-c", STORE, library, url])
        return [server], [1], lambda: self.start([sys.executable, "-c", ASK, library, url])

    def join(self, kind, calls):
        """How long the last one took until all had ended well, how many called, and what they cost."""
        address, port = new_place()
        waiting, counts, last = kind(address, port)
        for job, count in zip(waiting, counts):
            wait_until(
                lambda j=job, c=count: j.poll() is not None or len(ports_of(j.pid)) == c, "a port"
            )
        ports = [place for job in waiting for place in ports_of(job.pid)]
        self.assertEqual({place[0] for place in ports}, {address})  # and no other one
        self.assertEqual(len(ports), sum(counts))
        before = [resident(job.pid) for job in waiting]
        strangers = Strangers(ports, calls) if calls else None
        try:
            if strangers:
                self.assertTrue(strangers.done.wait(LONG))
            grown = max(resident(job.pid) - size for job, size in zip(waiting, before))
            since = time.monotonic()
            self.ends_well(last())
            for job in waiting:
                error = self.ends_well(job)
                self.assertLessEqual(len(error.splitlines()), 3 * max(counts), error)
            took = time.monotonic() - since
        finally:
            if strangers:
                strangers.end()
        return took, strangers.made if strangers else 0, grown

    def closed(self, name, kind):
        quiet = [self.join(kind, 0)[0] for _ in range(JOINS)]
        beside = [self.join(kind, CALLS // JOINS) for _ in range(JOINS)]
        grown = max(each[2] for each in beside)
        if not QUICK:  # sanitizers keep what is freed
            self.assertLessEqual(grown, MOST_GROWN)
        report.append(
            f"strangers: {name}: {sum(each[1] for each in beside)} calls, memory grown by "
            f"{grown >> 10} KiB; the last one in after {1e3 * max(each[0] for each in beside):.0f} ms at "
            f"most beside them, {1e3 * max(quiet):.0f} ms without, of {JOINS} each"
        )

    def test_coordinator_of_agents(self):
        self.closed("coordinator", self.coordinator)

    def test_meeting_and_ranks(self):
        self.closed("meeting and ranks", self.ranks)

    def test_meeting_and_ranks_with_gloo(self):
        probe = subprocess.run([TRIREME, "doctor"], capture_output=True, text=True, check=False)
        if not re.search(r"backend gloo +here", probe.stdout):
            self.skipTest("Gloo is not installed")
        self.closed("meeting and ranks, with Gloo", self.ranks_of_gloo)

    @unittest.skipIf(QUICK, "a sanitizer's library cannot be loaded by Python")
    def test_store(self):
        self.closed("store", self.store)


class Places(Jobs):
    starts = 0

    def job(self, place, ranks=2, **settings):
        jobs = [self.rank(rank, ranks, place, **settings) for rank in range(ranks)]
        for job in jobs:
            self.ends_well(job)
        Places.starts += 1

    def test_two_jobs_at_one_place(self):
        address, port = new_place()
        place = f"tcp://{address}:{port}"
        first = self.rank(0, 2, place)
        wait_until(lambda: len(ports_of(first.pid)) == 2, "a port")
        other = self.rank(0, 2, place, token=TOKEN + "?")
        _, error = other.communicate(timeout=LONG)
        self.assertNotEqual(other.returncode, 0)
        self.assertIn("token", error)
        self.job(place + "/other")  # of the same token, under another name
        self.ends_well(self.rank(1, 2, place))
        self.ends_well(first)

    def test_a_port_that_was_used_a_moment_ago(self):
        address, port = new_place()
        for _ in range(1 if QUICK else 6):
            self.job(f"tcp://{address}:{port}")

    def test_ipv6(self):
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError as why:
            self.skipTest(f"no IPv6 here: {why}")
        self.job(f"tcp://[::1]:{new_place()[1]}")

    def test_a_host_name_that_is_an_address_of_the_loopback(self):
        with tempfile.NamedTemporaryFile("w") as names:
            names.write("127.0.0.1 localhost\n127.0.1.1 trireme-tests-host\n")
            names.flush()
            wrap = [
                "unshare",
                "-m",
                "sh",
                "-c",
                f'mount --bind {names.name} /etc/hosts && exec "$@"',
                "sh",
            ]
            if subprocess.run([*wrap, "true"], capture_output=True, check=False).returncode != 0:
                self.skipTest("no namespace for a host's name")
            place = f"tcp://trireme-tests-host:{new_place()[1]}"
            jobs = [
                self.start(
                    [*wrap, TRIREME, "bench", "barrier", "-n", "2", "--ranks-as", "env"],
                    RANK=str(rank),
                    WORLD_SIZE="2",
                    TRIREME_RENDEZVOUS=place,
                )
                for rank in range(2)
            ]
            for job in jobs:
                self.ends_well(job)
            Places.starts += 1

    def test_many_start_at_once(self):
        count = 2 if QUICK else 200 if IS_LONG else 12
        jobs = [
            self.start([TRIREME, "bench", "barrier", "-n", "2", "-g", "2", "--ranks-as", "tcp"])
            for _ in range(count)
        ]
        for job in jobs:
            self.assertNotIn("in use", self.ends_well(job))
            Places.starts += 1


if __name__ == "__main__":
    TRIREME = os.path.abspath(sys.argv.pop(1))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
    result = unittest.main(verbosity=2, exit=False).result
    report.append(
        f"network: {Places.starts} jobs started at ports that others had, have or want, 0 refused them"
    )
    print("\n".join(report), flush=True)
    sys.exit(not result.wasSuccessful())
