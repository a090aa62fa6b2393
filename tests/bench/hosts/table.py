#!/usr/bin/env python3
"""The speed between hosts beside its bars, as one table.

Usage: table.py BUILD_FOLDER [--rounds N] [--seconds S] [--ranks N,...] [ROW...]

Rows: tcp, tcp_rooted, tcp_hosts, link, overlap, gloo, hierarchical, mpi, mpi_operations, mpi_hosts, store;
without any, all of them. "tcp" is the default between hosts over the loopback, beside the better of Open MPI over TCP
and Gloo; "tcp_hosts" the same between two hosts, and "link" between two hosts with 1 Gbit/s.
"tcp_rooted" has small calls with a root, beside Open MPI.
"overlap" is a step of training over that link, beside compute of twice its length. "check" is
a row that is only run when it is asked for: every operation, dtype and reduction over each of these
backends, each element compared; it takes minutes, and a wrong element makes the exit code 1.

Two network namespaces are the hosts (root only). A round measures ours and each peer once, one
after the other; a ratio is the median of the ratios within the rounds. Speed is not asserted:
machines differ, and what else runs on them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "cluster"))

import hosts  # noqa: E402

SECONDS = 900  # longest a single program may take
WARM_UP = 5
WIRE_SIZES = [8 * 8**k for k in range(8)]  # up to 16 MiB
WIRE_RANKS = [2, 4, 8, 16, 32]
WIRE_OPERATIONS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast"]
# Small ones whose ranks need not wait for each other.
ROOTED_OPERATIONS = ["broadcast", "reduce", "gather", "scatter"]
ROOTED_SIZES = [8 * 8**k for k in range(4)]  # up to 4 KiB
# All that ranks make by the memory of their hosts.
HOST_OPERATIONS = ["all_reduce", "reduce", "broadcast", "reduce_scatter", "reduce_scatter_v",
                   "all_gather", "all_gather_v"]
HOST_SIZES = [4096 * 4**k for k in range(7)]  # up to 16 MiB
LARGE = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
# The last bucket's share of the bytes: no compute is left to hide it. Half of zero3's are gathers.
OVERLAPS = {"data_parallel": ("data_parallel", 14 / 72),
            "data_parallel_small": ("data_parallel, 4 MiB buckets", 2 / 72),
            "zero3": ("zero3", 7 / 72), "zero3_small": ("zero3, 4 MiB buckets", 1 / 72)}
TOKEN = "a token of the benchmark, which no job has"
OVER_TCP = ["--mca", "btl", "tcp,self", "--mca", "pml", "ob1"]
MPIS = {"openmpi": ["--allow-run-as-root", "--oversubscribe"], "mpich": []}


class Missing(Exception):
    """A peer, a plugin or a right that is not there."""


class Failed(Exception):
    """A program that has not done what it should."""


def bytes_text(count: int) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count // size} {unit}"
    return f"{count} B"


def time_text(microseconds: float) -> str:
    return f"{microseconds:.2f} us" if microseconds < 1000 else f"{microseconds / 1000:.2f} ms"


def verdict(reached: bool) -> str:
    return "reached" if reached else "below"


class Table:
    """Prints lines as they come."""

    WIDTHS = (46, 11, 30, 11, 9, 11)

    def __init__(self) -> None:
        self.line("case", "ours", "against", "theirs", "ratio", "bar", "")

    def line(self, *cells: str) -> None:
        padded = [cell.ljust(width) for cell, width in zip(cells, self.WIDTHS)]
        print(" | ".join([*padded, *cells[len(padded):]]).rstrip(), flush=True)

    def note(self, text: str) -> None:
        print(f"  ({text})", flush=True)

    def faster(self, case: str, ours: list[float], against: str, theirs: list[float],
               bar: float) -> None:
        ratio = median(b / a for a, b in zip(ours, theirs))
        self.line(case, time_text(median(ours)), against, time_text(median(theirs)),
                  f"{ratio:.2f}x", f">= {bar:g}x", verdict(ratio >= bar))

    def at_most_more(self, case: str, ours: list[float], against: str, theirs: list[float],
                     limit: float) -> None:
        more = median(a - b for a, b in zip(ours, theirs))
        self.line(case, time_text(median(ours)), against, time_text(median(theirs)),
                  f"{more:+.2f} us", f"<= +{limit:g} us", verdict(more <= limit))


Times = dict[int, float]  # microseconds of an all-reduce, by bytes
Cases = dict[tuple[str, int], float]  # microseconds, by operation and bytes


class Bench:
    def __init__(self, build: Path, rounds: int, seconds: float, ranks: list[int]) -> None:
        self.build, self.rounds, self.seconds, self.ranks = build, rounds, seconds, ranks
        self.table = Table()
        self.trireme = str(build / "trireme")
        self.wrong = False
        self.meetings = 0

    # ---- running --------------------------------------------------------------------------

    def finish(self, jobs: list[subprocess.Popen]) -> str:
        """Waits for all; what the first one said."""
        said = [job.communicate(timeout=SECONDS) for job in jobs]
        for job, (_, errors) in zip(jobs, said):
            if job.returncode == 0:
                continue
            if ".so" in errors and "tried" in errors:
                raise Missing(errors.strip())
            raise Failed(f"{Path(str(job.args[-1])).name}: status {job.returncode}: "
                         f"{errors[-2000:].strip()}")
        return said[0][0]

    def bench_arguments(self, sizes: list[int]) -> list[str]:
        """Sizes in equal steps by factor."""
        factor = sizes[1] // sizes[0] if len(sizes) > 1 else 2
        return ["bench", "all_reduce", "-b", str(sizes[0]), "-e", str(sizes[-1]), "-f",
                str(factor), "-w", str(WARM_UP), "--seconds", str(self.seconds), "--place", "in",
                "--ranks-as", "env", "--json", "-"]

    @staticmethod
    def times_of_ours(text: str, backend: str) -> Times:
        data = json.loads(text)
        if not data["backend"].startswith(backend):
            raise Failed(f"the ranks have met as {data['backend']}, not as {backend}")
        return {row["bytes"]: row["in_place"]["time_us"] for row in data["rows"]}

    @staticmethod
    def times_of_peer(text: str) -> Times:
        rows = (line.split() for line in text.splitlines())
        return {int(row[1]): float(row[2]) for row in rows if len(row) == 3}

    def peer_arguments(self, sizes: list[int]) -> list[str]:
        return [str(WARM_UP), "0", str(self.seconds), *(f"all_reduce:{size}" for size in sizes)]

    def peer_program(self, name: str) -> Path:
        program = self.build / f"tests/bench/peers/bench_peer_{name}"
        if not program.exists():
            raise Missing(f"the peer {name} is not built, as it is not installed")
        return program

    def ours_on_hosts(self, network: hosts.Hosts, each: int, backend: str, sizes: list[int],
                      *more: str, flat: bool = False) -> Times:
        text = self.run_on_hosts(network, each, [*self.bench_arguments(sizes), *more], flat)
        return self.times_of_ours(text, backend)

    def run_on_hosts(self, network: hosts.Hosts, each: int, arguments: Sequence[str],
                     flat: bool) -> str:
        """`each` ranks on each host, one host after the other. `flat`: as if each had its own."""
        count = each * len(network.addresses)
        self.meetings += 1
        where = f"tcp://{network.addresses[0]}:29500/{self.meetings}"
        jobs = []
        for rank in range(count):
            environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(count),
                           "TRIREME_TOKEN": TOKEN,
                           "TRIREME_RENDEZVOUS": where + (f"?host=rank{rank}" if flat else "")}
            program = [self.trireme, *arguments, "--memory", "private"]
            jobs.append(network.popen(rank // each, program, env=environment, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return self.finish(jobs)

    def gloo_on_hosts(self, network: hosts.Hosts, each: int, sizes: list[int]) -> Times:
        program = self.peer_program("gloo")
        count = each * len(network.addresses)
        with tempfile.TemporaryDirectory() as folder:
            jobs = [network.popen(rank // each,
                                  [program, f"{count},{rank},eth0,{folder}",
                                   *self.peer_arguments(sizes)],
                                  text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                    for rank in range(count)]
            return self.times_of_peer(self.finish(jobs))

    def start(self, *command: object, **environment: str) -> subprocess.Popen:
        return subprocess.Popen(["timeout", "-k", "5", str(SECONDS), *map(str, command)],
                                env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def mpirun(self, name: str, ranks: int, *program: object) -> str:
        return self.finish([self.start(f"mpirun.{name}", *MPIS[name], "-np", ranks, *program)])

    @staticmethod
    def column(rounds: list[Times], size: int) -> list[float]:
        return [times[size] for times in rounds]

    # ---- rows -----------------------------------------------------------------------------

    def wire_bench(self, *more: object) -> list[str]:
        return [self.trireme, "bench", *WIRE_OPERATIONS, "barrier", "-b", "8", "-e",
                str(WIRE_SIZES[-1]), "-f", "8", "-w", str(WARM_UP), "--seconds", str(self.seconds),
                "--place", "in", "--backend", "frames", "--json", "-", *map(str, more)]

    def wire_peer(self) -> list[str]:
        return [str(WARM_UP), "0", str(self.seconds), "barrier:0",
                *(f"{each}:{size}" for each in WIRE_OPERATIONS for size in WIRE_SIZES)]

    @staticmethod
    def cases_of_ours(text: str, backend: str = "") -> Cases:
        data = json.loads(text)
        if not data.get("backend", "").startswith(backend):
            raise Failed(f"the ranks have met as {data['backend']}, not as {backend}")
        return {(row["operation"], row["bytes"]): (row.get("in_place") or row["out_of_place"])["time_us"]
                for row in data["rows"]}

    @staticmethod
    def cases_of_peer(text: str) -> Cases:
        rows = (line.split() for line in text.splitlines())
        # A peer that divides few bytes by the ranks moves none, in no time.
        return {(row[0], int(row[1])): float(row[2]) for row in rows
                if len(row) == 3 and float(row[2]) > 0}

    def beside_peers(self, case: str, ours: Callable[[], Cases],
                     peers: dict[str, Callable[[], Cases]]) -> None:
        """Each case beside the peer that is faster in it. A peer that fails is left out."""
        mine: list[Cases] = []
        theirs: dict[str, list[Cases]] = {name: [] for name in peers}
        for _ in range(self.rounds):
            mine.append(ours())
            for name in list(theirs):
                try:
                    theirs[name].append(peers[name]())
                except (Missing, Failed, subprocess.TimeoutExpired) as why:
                    self.table.note(f"{name} is left out: {why}")
                    del theirs[name]
        ratios: list[float] = []
        for what in mine[0]:
            columns = {name: [times[what] for times in rounds] for name, rounds in theirs.items()
                       if all(what in times for times in rounds)}
            if not columns:
                continue
            best = min(columns, key=lambda name: median(columns[name]))
            own = [times[what] for times in mine]
            ratios.append(median(b / a for a, b in zip(own, columns[best])))
            self.table.faster(f"{case}, {what[0]}, {bytes_text(what[1])}", own, best,
                              columns[best], 1)
        if ratios:
            mean = sum(ratios) / len(ratios)
            self.table.line(f"{case}, mean of {len(ratios)}", "", "", "", f"{mean:.2f}x",
                            ">= 1.3x", verdict(mean >= 1.3))

    def tcp(self) -> None:
        openmpi = self.build / "tests/bench/peers/bench_peer_openmpi"
        gloo = self.build / "tests/bench/peers/bench_peer_gloo"
        for ranks in self.ranks:
            loopback = [*OVER_TCP, "--mca", "btl_tcp_if_include", "lo"]
            self.beside_peers(
                f"tcp, n={ranks}",
                lambda: self.cases_of_ours(self.finish([self.start(
                    *self.wire_bench("-g", ranks, "--ranks-as", "tcp"))])),
                {"Open MPI over TCP": lambda: self.cases_of_peer(
                    self.mpirun("openmpi", ranks, *loopback, openmpi, *self.wire_peer())),
                 "Gloo": lambda: self.cases_of_peer(self.finish([self.start(
                     gloo, ranks, *self.wire_peer())]))})

    def tcp_rooted(self) -> None:
        """A fixed number of calls: the root's first ones say nothing of how long all take."""
        calls = 20000
        openmpi = self.build / "tests/bench/peers/bench_peer_openmpi"
        loopback = [*OVER_TCP, "--mca", "btl_tcp_if_include", "lo"]
        ours = [self.trireme, "bench", *ROOTED_OPERATIONS, "-b", str(ROOTED_SIZES[0]), "-e",
                str(ROOTED_SIZES[-1]), "-f", "8", "-w", str(WARM_UP), "-n", str(calls), "--place",
                "in", "--backend", "frames", "--ranks-as", "tcp", "--json", "-"]
        theirs = [str(WARM_UP), str(calls), "0",
                  *(f"{each}:{size}" for each in ROOTED_OPERATIONS for size in ROOTED_SIZES)]
        for ranks in self.ranks:
            self.beside_peers(
                f"tcp, n={ranks}",
                lambda: self.cases_of_ours(self.finish([self.start(*ours, "-g", ranks)])),
                {"Open MPI over TCP": lambda: self.cases_of_peer(
                    self.mpirun("openmpi", ranks, *loopback, openmpi, *theirs))})

    def tcp_hosts(self) -> None:
        with hosts.Hosts(2) as network, tempfile.TemporaryDirectory() as folder:
            def gloo() -> Cases:
                program = self.peer_program("gloo")
                with tempfile.TemporaryDirectory() as meeting:
                    return self.cases_of_peer(self.finish([network.popen(
                        rank, [program, f"2,{rank},eth0,{meeting}", *self.wire_peer()], text=True,
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(2)]))

            def openmpi() -> Cases:
                program = self.peer_program("openmpi")
                whole = [*network.mpirun("openmpi", 1, folder), str(program),
                         *self.wire_peer()]
                return self.cases_of_peer(self.finish([network.popen(
                    0, whole, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)]))

            self.beside_peers(
                "tcp, 2 hosts x 1",
                lambda: self.one_on_each(network, self.wire_bench("--ranks-as", "env")),
                {"Open MPI over TCP": openmpi, "Gloo": gloo})

    def one_on_each(self, network: hosts.Hosts, program: list[str]) -> Cases:
        self.meetings += 1
        where = f"tcp://{network.addresses[0]}:29500/{self.meetings}"
        return self.cases_of_ours(self.finish([network.popen(
            rank, [*program, "--memory", "private"],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "TRIREME_TOKEN": TOKEN,
                 "TRIREME_RENDEZVOUS": where},
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(2)]))

    def link(self) -> None:
        # Of two ranks each sends as many bytes as the whole has, or half of them in one direction.
        parts = {"all_reduce": 1, "broadcast": 1, "all_gather": 2, "reduce_scatter": 2}
        size = 64 << 20
        with hosts.Hosts(2) as network:
            self.limit(network)
            rounds = [self.one_on_each(network, [
                self.trireme, "bench", *parts, "-b", str(size), "-e", str(size), "-w", "1", "-n",
                "3", "--place", "in", "--ranks-as", "env", "--json", "-"])
                for _ in range(self.rounds)]
        for what, part in parts.items():
            own = [times[what, size] for times in rounds]
            ideal = [size / part * 8 / 1000.0] * len(own)  # microseconds at 1 Gbit/s
            self.table.faster(f"link of 1 Gbit/s, {what}, {bytes_text(size)}", own, "the link",
                              ideal, 0.93)

    @staticmethod
    def limit(network: hosts.Hosts) -> None:
        for host in network.hosts:
            limit = host.command(["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate",
                                  "1gbit", "burst", "256kb", "latency", "50ms"])
            if subprocess.run(limit, check=False, stderr=subprocess.DEVNULL).returncode != 0:
                raise Missing("tc with tbf")

    def overlap(self) -> None:
        """Each rank computes and moves bytes on one core. So an ideal exchange is waited for as long
        as its last bucket takes, and the step has its processor time beyond the compute."""
        cores = sorted(os.sched_getaffinity(0))
        figures: dict[str, list[float]] = {}
        with hosts.Hosts(2) as network:
            self.limit(network)
            text = self.finish([network.popen(
                rank, ["taskset", "-c", str(cores[rank % len(cores)]),
                       str(self.build / "tests/bench/bench_engine"), "overlap", str(self.rounds)],
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "TRIREME_TOKEN": TOKEN,
                     "TRIREME_RENDEZVOUS": f"tcp://{network.addresses[0]}:29500"},
                text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(2)])
        for line in text.splitlines():
            name, *values = line.split()
            figures[name] = [float(value) for value in values]
        for way, (words, last) in OVERLAPS.items():
            whole, alone, compute, exposed, processor = (
                figures[f"overlap_{way}{kind}"]
                for kind in ("", "_alone", "_compute", "_exposed", "_processor"))
            beyond = [max(0.0, a - b) for a, b in zip(whole, compute)]
            bucket = [last * time for time in alone]
            for what, times in (("waited for", exposed), ("beyond compute", beyond),
                                ("its last bucket", bucket),
                                ("processor time alone", processor)):
                share = median(a / b for a, b in zip(times, alone))
                self.table.line(f"overlap, {words}: {what}", time_text(median(times)),
                                "the exchange alone", time_text(median(alone)), f"{100 * share:.0f} %",
                                "<= 15 %" if times is exposed else "",
                                verdict(share <= 0.15) if times is exposed else "")

    def gloo(self) -> None:
        with hosts.Hosts(2) as network:
            ours, theirs = [], []
            for _ in range(self.rounds):
                ours.append(self.ours_on_hosts(network, 1, "gloo", LARGE, "--backend", "gloo"))
                theirs.append(self.gloo_on_hosts(network, 1, LARGE))
        for size in LARGE:
            self.table.faster(f"gloo, 2 hosts x 1, {bytes_text(size)}", self.column(ours, size),
                              "Gloo itself, better algorithm", self.column(theirs, size), 0.95)

    def hierarchical(self) -> None:
        with hosts.Hosts(2) as network:
            self.beside_the_wire(network)
            self.beside_flat_gloo(network)

    def beside_the_wire(self, network: hosts.Hosts) -> None:
        """The same ranks, as if each had a host of its own."""
        arguments = ["bench", *HOST_OPERATIONS, "-b", str(HOST_SIZES[0]), "-e",
                     str(HOST_SIZES[-1]), "-f", "4", "-w", str(WARM_UP), "--seconds",
                     str(self.seconds), "--place", "in", "--ranks-as", "env", "--json", "-"]
        ours, flat = [], []
        for _ in range(self.rounds):
            ours.append(self.cases_of_ours(self.run_on_hosts(network, 2, arguments, False),
                                           "hierarchical"))
            flat.append(self.cases_of_ours(self.run_on_hosts(network, 2, arguments, True),
                                           "frames (tcp)"))
        for what in ours[0]:
            self.table.faster(f"2 hosts x 2, {what[0]}, {bytes_text(what[1])}",
                              [times[what] for times in ours], "flat, over the wire",
                              [times[what] for times in flat], 1)

    def beside_flat_gloo(self, network: hosts.Hosts) -> None:
        sizes = [16 << 20, 64 << 20]
        ours, flat = [], []
        for _ in range(self.rounds):
            ours.append(self.ours_on_hosts(network, 2, "hierarchical", sizes))
            flat.append(self.ours_on_hosts(network, 2, "gloo", sizes, "--backend", "gloo",
                                           flat=True))
        for size in sizes:
            self.table.faster(f"hierarchical, 2 hosts x 2, {bytes_text(size)}",
                              self.column(ours, size), "flat, our gloo",
                              self.column(flat, size), 1.7)

    def mpi(self) -> None:
        self.of_each_mpi(self.mpi_on_one_host)

    def mpi_hosts(self) -> None:
        with hosts.Hosts(2) as network:
            self.of_each_mpi(lambda name: self.mpi_on_hosts(name, network))

    def of_each_mpi(self, row: Callable[[str], None]) -> None:
        for name in MPIS:
            try:
                if shutil.which(f"mpirun.{name}") is None:
                    raise Missing(f"mpirun of {name} is not installed")
                row(name)
            except Missing as why:
                self.table.note(f"left out: {why}")

    def beside_mpi(self, case: str, name: str, start: Callable[..., str], expected: str,
                   ways: Sequence[str], *backend: str) -> None:
        """`start` runs one program on all ranks, who then meet as `expected`."""
        program = self.peer_program(name)
        sizes = [8, *LARGE]
        ours: dict[str, list[Times]] = {way: [] for way in ways}
        theirs = []
        for _ in range(self.rounds):
            for way in ways:
                times: Times = {}
                for part in ([8], LARGE):
                    text = start(self.trireme, *self.bench_arguments(part), "--memory", way, *backend)
                    times |= self.times_of_ours(text, expected)
                ours[way].append(times)
            theirs.append(self.times_of_peer(start(program, *self.peer_arguments(sizes))))
        against = f"{name} itself, private"
        for way in ways:
            if expected == "local":
                self.table.faster(f"{case}, {way}, 8 B", self.column(ours[way], 8), against,
                                  self.column(theirs, 8), 1)
            else:
                self.table.at_most_more(f"{case}, {way}, 8 B", self.column(ours[way], 8), against,
                                        self.column(theirs, 8), 1)
            for size in LARGE:
                self.table.faster(f"{case}, {way}, {bytes_text(size)}",
                                  self.column(ours[way], size), against,
                                  self.column(theirs, size), 1 if expected == "local" else 0.95)

    def mpi_on_one_host(self, name: str) -> None:
        def start(*program: object) -> str:
            return self.mpirun(name, 2, *program)

        both = ("registered", "private")
        self.beside_mpi("mpi://, 1 host x 2", name, start, "local", both)
        self.beside_mpi("backend mpi, 1 host x 2", name, start, "mpi", both, "--backend", "mpi")

    def mpi_operations(self) -> None:
        """Over MPI itself, from 64 KiB on, beside the operations of that MPI."""
        sizes = [size for size in LARGE if size <= 16 << 20]
        theirs = [str(WARM_UP), "0", str(self.seconds),
                  *(f"{each}:{size}" for each in WIRE_OPERATIONS for size in sizes)]

        def row(name: str) -> None:
            # Open MPI binds two ranks to a core each by itself; MPICH does not.
            bound = ["-bind-to", "core"] if name == "mpich" else []
            for way in ("registered", "private"):
                mine, peers = [], []
                for _ in range(self.rounds):
                    mine.append(self.cases_of_ours(self.mpirun(
                        name, 2, *bound, self.trireme, "bench", *WIRE_OPERATIONS, "-b", sizes[0],
                        "-e", sizes[-1], "-f", 4, "-w", WARM_UP, "--seconds", self.seconds,
                        "--place", "in", "--ranks-as", "env", "--backend", "mpi", "--memory", way,
                        "--json", "-"), "mpi"))
                    peers.append(self.cases_of_peer(self.mpirun(
                        name, 2, *bound, self.peer_program(name), *theirs)))
                for what in mine[0]:
                    self.table.faster(f"backend mpi, {way}, {what[0]}, {bytes_text(what[1])}",
                                      [times[what] for times in mine], f"{name} itself",
                                      [times[what] for times in peers], 0.95)

        self.of_each_mpi(row)

    def mpi_on_hosts(self, name: str, network: hosts.Hosts) -> None:
        if name == "mpich":
            raise Missing("MPICH between hosts, which are none to it: see tests/cluster/hosts.py")
        for each, expected in ((1, "mpi"), (2, "hierarchical")):
            with tempfile.TemporaryDirectory() as folder:
                command = network.mpirun(name, each, folder)

                def start(*program: object) -> str:
                    whole = [*command, *map(str, program)]
                    return self.finish([network.popen(0, whole, text=True, stdout=subprocess.PIPE,
                                                      stderr=subprocess.PIPE)])

                self.beside_mpi(f"mpi://, 2 hosts x {each}", name, start, expected, ("private",))

    # The output of bench_store: lines of numbers below a line that begins with #.
    def store_figures(self) -> tuple[list[float], dict[int, list[float]]]:
        program = self.build / "tests/bench/bench_store"
        if not program.exists():
            raise Missing("bench_store is not built")
        best, joined = [], {}
        for _ in range(self.rounds):
            rows = [line.split() for line in self.finish([self.start(program)]).splitlines()
                    if not line.startswith("#")]
            best.append(max(float(row[2]) for row in rows if len(row) == 3 and row[1] == "32"))
            for row in rows:
                if len(row) == 2:
                    joined.setdefault(int(row[0]), []).append(float(row[1]))
        return best, joined

    def store(self) -> None:
        best, joined = self.store_figures()
        speed = median(best)
        self.table.line("store, operations a second, loopback", f"{speed:.0f}", "", "", "",
                        ">= 20000", verdict(speed >= 20000))
        for ranks, seconds in joined.items():
            bar = {256: 1.0, 1024: 3.0}[ranks]
            self.table.line(f"joining by the store, {ranks} ranks", f"{median(seconds):.2f} s", "",
                            "", "", f"<= {bar:g} s", verdict(median(seconds) <= bar))

    def check(self) -> None:
        for backend in ("frames", "gloo"):
            text = self.finish([self.start(self.trireme, "bench", "--all", "--check", "--ranks-as",
                                           "tcp", "--backend", backend)])
            self.checked(f"tcp://, {backend}, 1 to 5 ranks", text)
        # Of fewer ranks none share one of two hosts.
        for backend, count in ((backend, n) for backend in ("frames", "gloo") for n in (3, 4, 5)):
            self.meetings += 1
            jobs = [self.start(self.trireme, "bench", "--all", "--check", "--ranks-as", "env",
                               "--backend", backend, RANK=str(rank), WORLD_SIZE=str(count), TRIREME_TOKEN=TOKEN,
                               TRIREME_RENDEZVOUS=f"tcp://127.201.0.1:29500/{self.meetings}"
                                                  f"?host={rank % 2}")
                    for rank in range(count)]
            self.checked(f"hierarchical, {backend}, {count} ranks on 2 hosts in turn",
                         self.finish(jobs))
        self.of_each_mpi(self.check_mpi)

    def check_mpi(self, name: str) -> None:
        for case, backend in (("mpi://", []), ("backend mpi", ["--backend", "mpi"])):
            for count in range(1, 6):
                self.checked(f"{case}, {name}, n={count}",
                             self.mpirun(name, count, self.trireme, "bench", "--all", "--check",
                                         "--ranks-as", "env", *backend))

    def checked(self, case: str, text: str) -> None:
        cases, wrong = text.splitlines()[-1].removeprefix("all: ").split(" cases, ")
        wrong = int(wrong.split()[0])
        self.wrong |= wrong != 0
        self.table.line(f"check: {case}", cases, "cases", str(wrong), "wrong", "0",
                        "reached" if wrong == 0 else "WRONG")


ROWS = ("tcp", "tcp_rooted", "tcp_hosts", "link", "overlap", "gloo", "hierarchical", "mpi", "mpi_operations",
        "mpi_hosts", "store", "check")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each case in a round")
    parser.add_argument("--ranks", default=",".join(map(str, WIRE_RANKS)),
                        help="numbers of ranks of the row tcp")
    arguments = parser.parse_intermixed_args()
    if arguments.rounds < 1 or arguments.seconds <= 0:
        parser.error("--rounds and --seconds are at least 1 and above 0")
    for row in arguments.rows:
        if row not in ROWS:
            parser.error(f"{row} is not one of {', '.join(ROWS)}")
    bench = Bench(arguments.build.resolve(), arguments.rounds, arguments.seconds,
                  [int(count) for count in arguments.ranks.split(",")])
    failed = False
    for row in arguments.rows or ROWS[:-1]:
        try:
            getattr(bench, row)()
        except (Missing, unittest.SkipTest) as why:
            bench.table.note(f"{row} is left out: {why}")
        except (Failed, subprocess.TimeoutExpired) as why:
            bench.table.note(f"{row} FAILED: {why}")
            failed = True
    return 1 if failed or bench.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
