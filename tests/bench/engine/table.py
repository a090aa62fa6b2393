#!/usr/bin/env python3
"""The speed of the sharded engine beside its bars, as one table.

Usage: table.py BUILD_FOLDER [--rounds N] [--folder FOLDER] [--elements N] [ROW...]

Rows: step, sweep, backward, overlap, layers, gather, hooks, update, offload, parameters,
activations, trainer, gpt; without any, all of them. A round measures each way and each peer once,
one after the other; a ratio is the median of the ratios within the rounds. Nothing is asserted:
machines differ, and what else runs on them.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SECONDS = 600  # longest a single program may take
STEPS = 5  # steps of one program in one round
GPT_STEPS = 12  # of the language model in one run, which prints their median
LAYERS, LAYER_ELEMENTS = 72, 350_000
BUCKETS = (1, 19, 19, 19, 14)  # layers in each bucket: 1 MiB is full after 1, 25 MiB after 19


class Missing(Exception):
    """A peer or a language that is not there."""


class Failed(Exception):
    """A program that has not done what it should."""


def run(*command: object, **environment: str) -> str:
    # timeout(1) ends what the program has started, too.
    done = subprocess.run(["timeout", "-k", "5", str(SECONDS), *map(str, command)],
                          env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        name = " ".join(str(word) for word in command[:2])
        raise Failed(f"{name} ended with status {done.returncode}: {done.stderr[-2000:].strip()}")
    return done.stdout


def time_text(microseconds: float) -> str:
    if microseconds < 1000:
        return f"{microseconds:.2f} us"
    return f"{microseconds / 1000:.1f} ms"


def speed_text(bytes_moved: float, microseconds: float) -> str:
    return f"{bytes_moved / microseconds / 1000:.2f} GB/s"


class Table:
    """Prints lines as they come."""

    WIDTHS = (53, 10, 38, 10, 9, 8)

    def __init__(self) -> None:
        self.line("case", "ours", "against", "theirs", "ratio", "bar", "")

    def line(self, *cells: str) -> None:
        padded = [cell.ljust(width) for cell, width in zip(cells, self.WIDTHS)]
        print(" | ".join([*padded, *cells[len(padded):]]), flush=True)

    def note(self, text: str) -> None:
        print(f"  ({text})", flush=True)

    def faster(self, case: str, ours: list[float], against: str, theirs: list[float],
               bar: float | None) -> None:
        ratio = median(b / a for a, b in zip(ours, theirs))
        self.line(case, time_text(median(ours)), against, time_text(median(theirs)),
                  f"{ratio:.2f}x", *(("", "") if bar is None else
                                     (f">= {bar:g}x", verdict(ratio >= bar))))

    def at_most(self, case: str, ours: list[float], limit: float) -> None:
        value = median(ours)
        self.line(case, time_text(value), "", "", "", f"< {limit:g} us", verdict(value < limit))


def verdict(reached: bool) -> str:
    return "reached" if reached else "below"


class Bench:
    def __init__(self, build: Path, rounds: int, folder: Path, elements: int) -> None:
        self.build, self.rounds, self.table = build, rounds, Table()
        self.folder, self.elements = folder, elements

    def ours(self, row: str, ranks: int, rounds: int, *more: object) -> dict[str, list[float]]:
        output = run(self.build / "trireme", "run", "--no-prefix", "--nproc-per-node", ranks, "--",
                     self.build / "tests/bench/bench_engine", row, rounds, *more)
        figures = {}
        for line in output.splitlines():
            if line.startswith("# "):
                self.table.note(line[2:])
                continue
            name, *values = line.split()
            figures[name] = [float(value) for value in values]
        return figures

    # ---- a step of data-parallel training -------------------------------------------------

    def peer(self, name: str) -> list[float]:
        """The microseconds of some steps of a peer."""
        if name == "torch":
            script = self.build / "tests/bench/peers/torch_ddp.py"
            output = run("/usr/bin/python3", script, STEPS, LAYERS, LAYER_ELEMENTS)
        else:
            sizes = [count * LAYER_ELEMENTS * 4 for count in BUCKETS]
            program = self.build / f"tests/bench/peers/bench_peer_buckets_{name}"
            options = ["--allow-run-as-root", "--oversubscribe"] if name == "openmpi" else []
            output = run(f"mpirun.{name}", *options, "-np", 2, program, STEPS, *sizes)
        return [float(word) for word in output.split()]

    def need_peer(self, name: str) -> None:
        if name == "torch":
            self.need_torch()
            return
        program = self.build / f"tests/bench/peers/bench_peer_buckets_{name}"
        if not program.exists() or shutil.which(f"mpirun.{name}") is None:
            raise Missing(f"{name} is not installed, or its peer is not built")

    def need_torch(self) -> None:
        probe = ["/usr/bin/python3", "-c",
                 "import torch.distributed as d; assert d.is_available() and d.is_gloo_available()"]
        if not Path(probe[0]).exists() or subprocess.run(
                probe, capture_output=True, check=False).returncode != 0:
            raise Missing("PyTorch with Gloo is not installed for /usr/bin/python3")

    def step(self) -> None:
        peers: dict[str, list[float]] = {}
        for name in ("openmpi", "mpich", "torch"):
            try:
                self.need_peer(name)
                peers[name] = []
            except Missing as why:
                self.table.note(f"left out: {why}")
        ours = []
        for _ in range(self.rounds):
            figures = self.ours("step", 2, STEPS)
            if figures["step_buckets"] != [len(BUCKETS)]:
                raise Failed("our buckets are not those that the peers reduce")
            ours.append(median(figures["step"]))
            for name, times in peers.items():
                times.append(median(self.peer(name)))
        case = "exchange of a step, 25.2 M in 72 tensors, n=2"
        mpi = sorted((name for name in peers if name != "torch"), key=lambda x: median(peers[x]))
        if mpi:
            self.table.faster(case, ours, f"{mpi[0]}, same buckets in place", peers[mpi[0]], 3.5)
        if "torch" in peers:
            self.table.faster(case, ours, "torch DDP with views - no_sync", peers["torch"], 5)
        if not peers:
            self.table.line(case, time_text(median(ours)), "nobody is installed", "", "", "", "")

    # ---- ours against ours ----------------------------------------------------------------

    def sweep(self) -> None:
        replicated, passes = "all-reduce, AdamW on every rank", "zero1, separate passes"
        for ranks, bar in ((2, 1.6), (4, 2.2)):
            times = self.ours("sweep", ranks, self.rounds)
            for way, words, against, other, least in (
                    ("sweep", "", replicated, "replicated", bar),
                    ("sweep_views", ", views", f"{replicated}, views", "replicated_views", bar),
                    ("sweep_views_one_copy", ", views, one copy", f"{replicated}, views",
                     "replicated_views", bar),
                    ("sweep", "", passes, "passes", None),
                    ("sweep_views", ", views", f"{passes}, views", "passes_views", None)):
                self.table.faster(f"zero1 step in one sweep{words}, n={ranks}", times[way], against,
                                  times[other], least)

    def backward(self) -> None:
        times = self.ours("backward", 2, self.rounds)
        for strategy in ("data_parallel", "zero2", "zero3"):
            ours, plain = f"backward_{strategy}", f"backward_plain_{strategy}"
            self.table.faster(f"step with update in backward, n=2, {strategy}", times[ours],
                              "step without", times[plain], None)
            few, many = times[f"{ours}_bytes"][0], times[f"{plain}_bytes"][0]
            self.table.line(f"gradients and working memory, n=2, {strategy}",
                            f"{few / 2**20:.1f} MiB", "without", f"{many / 2**20:.1f} MiB",
                            f"{many / few:.2f}x", "", "")

    def overlap(self) -> None:
        times = self.ours("overlap", 2, self.rounds)
        for way, words in (("data_parallel", "data_parallel, views"),
                           ("data_parallel_small", "data_parallel, views, 4 MiB buckets"),
                           ("zero3", "zero3, one copy"),
                           ("zero3_small", "zero3, one copy, 4 MiB buckets"),
                           ("zero3_copied_small", "zero3, copied, 4 MiB buckets")):
            whole, alone, compute, exposed = (
                times[f"overlap_{way}{kind}"] for kind in ("", "_alone", "_compute", "_exposed"))
            more = [max(0.0, a - b) for a, b in zip(whole, compute)]
            longer = median(c / a for c, a in zip(compute, alone))
            for what, share in (("exposed", exposed), ("beyond compute", more)):
                ratio = median(a / b for a, b in zip(share, alone))
                self.table.line(f"{what}, n=2, {words}", time_text(median(share)),
                                f"exchange, compute {longer:.1f}x as long",
                                time_text(median(alone)), f"{100 * ratio:.0f} %", "<= 15 %",
                                verdict(ratio <= 0.15))

    def layers(self) -> None:
        for ranks in (2, 4):
            times = self.ours("layers", ranks, self.rounds)
            few, many = (times[f"layers_{way}_gathers"][0] for way in ("grouped", "single"))
            ratio = many / few
            self.table.line(f"zero3, 1000 small layers: gathers, n={ranks}", f"{few:.0f}",
                            "one by one", f"{many:.0f}", f"{ratio:.0f}x", ">= 20x",
                            verdict(ratio >= 20))
            self.table.faster(f"zero3, 1000 small layers: time, n={ranks}",
                              times["layers_grouped"], "one by one", times["layers_single"], 5)
            self.table.faster(f"the same, one copy, n={ranks}", times["layers_shared"],
                              "one by one", times["layers_single"], 5)

    def gather(self) -> None:
        for ranks in (2, 4):
            times = self.ours("gather", ranks, self.rounds)
            value, other = median(times["gather_shared"]), median(times["gather_copied"])
            self.table.line(f"gather of 64 MiB, one copy, n={ranks}", time_text(value), "copied",
                            time_text(other), f"{other / value:.0f}x", "< 20 us",
                            verdict(value < 20))
            sent, copied = (times[f"gather_{way}_bytes"][0] for way in ("shared", "copied"))
            self.table.line(f"bytes a rank gives for it, n={ranks}", f"{sent:.0f}", "copied",
                            f"{copied:.0f}", "", "0", verdict(sent == 0))

    # ---- the update alone ------------------------------------------------------------------

    def update(self) -> None:
        try:
            self.need_torch()
            theirs = True
        except Missing as why:
            self.table.note(f"left out: {why}")
            theirs = False
        for threads in (1, 2):
            times = self.ours("update", threads, self.rounds)
            for millions in (50, 100):
                floor = times[f"update_stream_{millions}"]
                case = f"AdamW, f32, {millions} M, {threads} thread{'s' * (threads > 1)}"
                self.table.faster(case, times[f"update_adamw_{millions}"],
                                  "plain loop, reads 4, writes 3", floor, 0.95)
                self.table.faster(f"{case}, clipped by norm", times[f"update_clipped_{millions}"],
                                  "plain loop, reads 4, writes 3", floor, None)
                if theirs:
                    self.beside_torch(case, times[f"update_adamw_{millions}"], millions, threads)

    def beside_torch(self, case: str, ours: list[float], millions: int, threads: int) -> None:
        output = run("/usr/bin/python3", self.build / "tests/bench/peers/torch_adamw.py",
                     self.rounds, millions, threads)
        ways = [(line.split()[0], [float(word) for word in line.split()[1:]])
                for line in output.splitlines()]
        best, times = min(ways, key=lambda way: median(way[1]))
        self.table.faster(case, ours, f"torch, best of {len(ways)}: {best}", times, 2)

    # ---- state in a file -------------------------------------------------------------------

    def offload(self) -> None:
        # The state, as much for the disk's own figures, and what a file system needs beside.
        needed = 2 * 8 * self.elements * 2**20 + 2**28
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            self.table.note(f"left out: offload needs {needed / 1e9:.1f} GB in {self.folder}, "
                            f"{free / 1e9:.1f} GB are free")
            return
        times = self.ours("offload", 1, self.rounds, self.folder, self.elements)
        if "offload_step" not in times:
            return
        disk = times["offload_disk_bytes"][0]
        kinds = {}
        for kind in ("read", "write", "mixed"):
            ring, in_flight, size = (times[f"offload_disk_{kind}_{name}"][0]
                                     for name in ("ring", "in_flight", "request_bytes"))
            kinds[kind] = (f"disk, {kind}, {'io_uring' if ring else 'threads'}, {in_flight:.0f} x "
                           f"{size / 2**20:.3g} MiB")
            bytes_moved = 2 * disk if kind == "mixed" else disk
            self.table.line(kinds[kind],
                            speed_text(bytes_moved, median(times[f"offload_disk_{kind}"])))
        case = f"AdamW, f32, {self.elements} Mi, state in a file"
        steps, computes, moved = (times[f"offload_{name}"] for name in ("step", "memory", "moved"))
        mixed = [2 * disk / time for time in times["offload_disk_mixed"]]  # bytes in 1 us
        transfers = [bytes_moved / speed for bytes_moved, speed in zip(moved, mixed)]
        share = median(a / b for a, b in zip(transfers, steps))
        reached = verdict(share >= 0.85)
        if share < 0.85 and median(a / b for a, b in zip(computes, transfers)) > 1:
            reached += ", the update takes longer"
        self.table.line(f"{case}: bytes", speed_text(median(moved), median(steps)), kinds["mixed"],
                        speed_text(1, median(1 / speed for speed in mixed)), f"{share:.2f}x",
                        ">= 0.85x", reached)
        floors = [max(pair) for pair in zip(computes, transfers)]
        ratio = median(a / b for a, b in zip(steps, floors))
        self.table.line(f"{case}: time", time_text(median(steps)), "longer of update and transfer",
                        time_text(median(floors)), f"{ratio:.2f}x", "<= 1.15x",
                        verdict(ratio <= 1.15))
        self.table.line("the same: waited for the disk",
                        time_text(median(times["offload_waited"])), "update, state in memory",
                        time_text(median(computes)))

    def parameters(self) -> None:
        needed = 3 * 8 * self.elements * 2**20 + 2**28
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            self.table.note(f"left out: parameters needs {needed / 1e9:.1f} GB in {self.folder}, "
                            f"{free / 1e9:.1f} GB are free")
            return
        found = self.ours("parameters", 1, self.rounds, self.folder, self.elements)
        memory = found["parameters_memory"]
        for way, what in (("file", "parameters in a file"), ("both", "parameters and state in files")):
            name = f"parameters_{way}"
            self.table.faster(f"step of zero3, AdamW, {self.elements} Mi, {what}", found[name],
                              "all in memory", memory, None)
            mib = [found[f"{one}_bytes"][0] / 2**20 for one in (name, "parameters_memory")]
            self.table.line("the same: memory, but for gradients", f"{mib[0]:.0f} MiB",
                            "all in memory", f"{mib[1]:.0f} MiB")
        moved, file = found["parameters_moved"], found["parameters_file"]
        self.table.line("parameters in a file: bytes of them", speed_text(median(moved), median(file)),
                        "waited for the disk", time_text(median(found["parameters_waited"])))

    def activations(self) -> None:
        needed = 2**29
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            self.table.note(f"left out: activations needs {needed / 1e9:.1f} GB in {self.folder}, "
                            f"{free / 1e9:.1f} GB are free")
            return
        found = self.ours("activations", 1, self.rounds, self.folder, 1)
        memory = found["activations_memory"]
        for way, what in (("half", "a window of half of them"), ("window", "a window of 4 of 16")):
            name = f"activations_{way}"
            self.table.faster(f"step with activations in a file, {what}", found[name],
                              "all in memory", memory, None)
            mib = [found[f"{one}_bytes"][0] / 2**20 for one in (name, "activations_memory")]
            self.table.line("the same: memory for them", f"{mib[0]:.0f} MiB", "all in memory",
                            f"{mib[1]:.0f} MiB")
            self.table.line("the same: waited for the disk",
                            time_text(median(found[name + "_waited"])), "written and read",
                            f"{found[name + '_moved'][0] / 2**20:.0f} MiB")

    # ---- the calls alone, in every language ------------------------------------------------

    def language(self, name: str, work: Path) -> list[object]:
        """The command that prints the microseconds of `hooks` or `trainer`."""
        if name == "Python":
            return [sys.executable, HERE / "units.py"]
        if name == "Rust":
            if shutil.which("cargo") is None:
                raise Missing("Rust: cargo is not installed")
            try:
                run("cargo", "build", "--quiet", "--release", "--offline", "--manifest-path",
                    ROOT / "bindings/rust/Cargo.toml", "--example", "bench_units",
                    CARGO_TARGET_DIR=str(work / "rust"), TRIREME_LIB_DIR=str(self.build))
            except Failed as why:
                raise Missing(f"Rust: the binding does not build: {why}") from why
            return [work / "rust/release/examples/bench_units"]
        if shutil.which("mcs") is None:
            raise Missing("C#: Mono is not installed")
        program = work / "dotnet/Units.exe"
        try:
            run("bash", ROOT / "bindings/dotnet/build.sh", work / "dotnet")
            run("mcs", "-nologo", "-langversion:7.2", "-optimize",
                f"-r:{work}/dotnet/Trireme.dll", f"-out:{program}", HERE / "Units.cs")
        except Failed as why:
            raise Missing(f"C#: the binding does not build: {why}") from why
        return ["mono", program]

    def languages(self, row: str, what: str) -> None:
        """A row whose calls cost the bindings something, in every language in turn."""
        environment = {"TRIREME_LIBRARY": str(self.build / "libtrireme.so.1"),
                       "LD_LIBRARY_PATH": str(self.build),
                       "PYTHONPATH": str(ROOT / "bindings/python")}
        with tempfile.TemporaryDirectory() as folder:
            commands: dict[str, list[object]] = {}
            for name in ("Rust", "C#", "Python"):
                try:
                    commands[name] = self.language(name, Path(folder))
                except Missing as why:
                    self.table.note(f"left out: {why}")
            times: dict[str, list[float]] = {name: [] for name in ("C", *commands)}
            for _ in range(self.rounds):
                times["C"].append(self.ours(row, 1, 1)[row][0])
                for name, command in commands.items():
                    times[name].append(float(run(*command, row, **environment)))
        for name, limit in (("C", 1), ("Rust", 1), ("C#", 2), ("Python", 20)):
            if name in times:
                self.table.at_most(f"{what}, {name}", times[name], limit)

    def hooks(self) -> None:
        self.languages("hooks", "hooks of a unit beyond the exchange")

    def trainer(self) -> None:
        self.languages("trainer", "layer of a trainer that computes nothing")
        ours = self.ours("trainer", 1, self.rounds)
        self.table.at_most("the same by hand, C", ours["trainer_by_hand"], 1)

    # ---- the language model of examples/gpt ------------------------------------------------

    def language_model(self, folder: Path, ranks: int, strategy: str, *options: object
                       ) -> tuple[float, float, int]:
        """Microseconds of a step and of its forward alone, and the bytes of activations."""
        output = run(self.build / "trireme", "run", "--no-prefix", "--nproc-per-node", ranks, "--",
                     self.build / "examples/gpt/example_gpt", "--text", folder / "text",
                     "--out", folder, "--sample", 0, "--steps", GPT_STEPS, "--strategy", strategy,
                     *options, OPENBLAS_NUM_THREADS="1")
        found = re.search(r"([\d.]+) ms a step, ([\d.]+) ms an evaluation.*; (\d+) bytes of "
                          "activations planned", output)
        if found is None:
            raise Failed(f"example_gpt has not told its times: {output[-2000:]}")
        return float(found[1]) * 1000, float(found[2]) * 1000, int(found[3])

    def gpt(self) -> None:
        if not (self.build / "examples/gpt/example_gpt").exists():
            self.table.note("left out: examples/gpt is not built, OpenBLAS is missing")
            return
        alone = "everything kept"
        ways: dict[str, tuple[object, ...]] = {
            alone: (1, "data_parallel"),
            "data_parallel": (2, "data_parallel"),
            "zero3": (2, "zero3"),
            "checkpoint_every 2": (1, "data_parallel", "--checkpoint", 2),
            "checkpoint_every 1": (1, "data_parallel", "--checkpoint", 1)}
        figures: dict[str, list[tuple[float, float, int]]] = {way: [] for way in (*ways, "both")}
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            packed = ROOT / "examples/data/trireme.txt.gz"
            (folder / "text").write_bytes(gzip.decompress(packed.read_bytes()))
            for _ in range(self.rounds):
                for way, arguments in ways.items():
                    figures[way].append(self.language_model(folder, *arguments))
                # The speed that the cores take from each other, without any exchange.
                with ThreadPoolExecutor() as pool:
                    halves = [pool.submit(self.language_model, folder, 1, "data_parallel",
                                          "--leaves", 4) for _ in range(2)]
                figures["both"].append(max(half.result() for half in halves))
        times = {way: [figure[0] for figure in rounds] for way, rounds in figures.items()}
        for way, words, bar in (("data_parallel", "data_parallel", 90), ("zero3", "zero3", 80),
                                ("both", "no exchange", None)):
            ratio = 100 * median(a / (2 * b) for a, b in zip(times[alone], times[way]))
            self.table.line(f"step of a language model, n=2, {words}",
                            time_text(median(times[way])), "half of the same step, n=1",
                            time_text(median(times[alone]) / 2), f"{ratio:.0f} %",
                            *(("", "") if bar is None else (f">= {bar} %", verdict(ratio >= bar))))
        forward = [figure[1] for figure in figures[alone]]
        for way in ("checkpoint_every 2", "checkpoint_every 1"):
            more = median((b - a) / f for a, b, f in zip(times[alone], times[way], forward))
            self.table.line(f"longer with {way}, n=1",
                            time_text(median(b - a for a, b in zip(times[alone], times[way]))),
                            "forward alone", time_text(median(forward)), f"{100 * more:.0f} %",
                            "<= 100 %", verdict(more <= 1))
        kept = figures[alone][0][2]
        for way in (alone, "checkpoint_every 2", "checkpoint_every 1"):
            planned = figures[way][0][2]
            self.table.line(f"activations, {way}", f"{planned / 2**20:.2f} MiB", alone,
                            f"{kept / 2**20:.2f} MiB", f"{kept / planned:.2f}x", "", "")


ROWS = ("step", "sweep", "backward", "overlap", "layers", "gather", "hooks", "update", "offload",
        "parameters", "activations",
        "trainer", "gpt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, help="the build folder")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS) + "; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path,
                        help="where offload has its file; default: the build folder")
    parser.add_argument("--elements", type=int, default=64, metavar="N",
                        help="of the model of offload, in units of 2^20; default: %(default)s")
    arguments = parser.parse_args()
    unknown = [row for row in arguments.rows if row not in ROWS]
    if unknown or not 1 <= arguments.rounds <= 101:
        parser.error(f"no row {unknown[0]!r}" if unknown else "1 to 101 rounds")
    folder = (arguments.folder or arguments.build).resolve()
    if arguments.elements < 1 or not folder.is_dir():
        parser.error("at least 1 element, in a folder")
    bench = Bench(arguments.build.resolve(), arguments.rounds, folder, arguments.elements)
    try:
        for row in arguments.rows or ROWS:
            getattr(bench, row)()
    except Failed as why:
        sys.exit(str(why))


if __name__ == "__main__":
    main()
