"""The rooms of src/: what each is for, and which rooms its files include today.
docs/architecture.md says why.

From the bottom up: a room includes only rooms above it in this table, so there are no circles. A
room is one folder; one inside another is a room of its own. A new edge between rooms is a word
here, and one that no file uses any more is taken out.
"""

import pathlib
import re
from collections import namedtuple

ROOT = pathlib.Path(__file__).resolve().parents[2]

Room = namedtuple("Room", "duty includes")

# "public" is include/trireme: the ABI, which all see but the store and the launcher.
ROOMS = {
    "platform": Room("status, clock, threads, files, log, failpoints", "public"),
    "net": Room("sockets, endpoints, the job's token, handshakes", "platform public"),
    "kernels": Room("typed loops over memory", "platform public"),
    "schedules": Room("algorithms of collectives, step by step; pure", "public"),
    "sharding": Room("who holds what: layouts, plans, meshes; pure", "platform public"),
    "backends": Room("what a backend is; what calls compare", "platform public"),
    "backends/slots": Room(
        "the protocol of ranks that share memory", "backends kernels net platform public"
    ),
    "backends/local": Room(
        "threads and processes of one host", "backends backends/slots net platform public"
    ),
    "backends/frames": Room(
        "ranks whose bytes a transport carries",
        "schedules backends backends/slots net platform public",
    ),
    "backends/tcp": Room("connections between hosts", "backends kernels net platform public"),
    "backends/wire": Room(
        "a ring of ranks on several hosts", "backends backends/tcp kernels platform public"
    ),
    "backends/gloo": Room(
        "collectives that Gloo runs", "backends backends/tcp kernels platform public"
    ),
    "backends/gloo/plugin": Room("compiled with Gloo", "backends/gloo public"),
    "backends/hierarchical": Room(
        "memory on a host, a ring between hosts",
        "backends backends/local backends/tcp backends/wire kernels net platform public",
    ),
    "backends/mpi": Room(
        "ranks that mpirun started",
        "backends backends/frames backends/hierarchical backends/wire kernels net platform public",
    ),
    "backends/mpi/plugin": Room("compiled with each MPI", "backends/mpi public"),
    "backends/join": Room(
        "which backend a rendezvous means",
        "backends backends/frames backends/gloo backends/hierarchical backends/local backends/mpi "
        "backends/tcp net platform public",
    ),
    "collectives": Room(
        "order, deadlines, requests, messages",
        "schedules sharding backends backends/mpi kernels net platform public",
    ),
    "exchange": Room(
        "a model's memory and its way to the peers", "collectives sharding platform public"
    ),
    "offload": Room("what lies in files", "exchange sharding kernels platform public"),
    "model/gradients": Room(
        "buckets, and when each is reduced", "exchange sharding kernels platform public"
    ),
    "model/units": Room(
        "units that are gathered for use",
        "offload exchange collectives sharding kernels platform public",
    ),
    "model": Room(
        "parameters, and the order of calls in a step",
        "model/gradients model/units offload exchange collectives sharding kernels platform public",
    ),
    "optimizer/rules": Room(
        "how an update is computed, and its state",
        "model offload exchange sharding kernels platform public",
    ),
    "optimizer": Room(
        "the end of a step, and the state",
        "optimizer/rules model exchange collectives sharding kernels platform public",
    ),
    "trainer": Room(
        "a step from layers with callbacks",
        "optimizer model offload exchange sharding kernels platform public",
    ),
    "store": Room("the job's store", "net platform"),
    "api": Room(
        "the boundary: check, call down, translate",
        "store trainer optimizer optimizer/rules model collectives schedules backends "
        "backends/gloo backends/mpi kernels platform public",
    ),
    "launch": Room("starts workers and ends them", "net platform"),
    "cli/bench": Room("trireme bench", "public"),
    "cli/doctor": Room("trireme doctor", "platform public"),
    "cli": Room("the command", "cli/bench cli/doctor launch net public"),
}

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', flags=re.M)


def story(room):
    """The room of the first floor that a room is part of: model of model/units."""
    return room.split("/")[0]


STORIES = {story(room) for room in ROOMS}


def included(text):
    return INCLUDE.findall(text)


def target_of(include):
    """The room of an include, "public", or None for what is not the project's."""
    if include.startswith("trireme/"):
        return "public"
    path = pathlib.PurePosixPath(include)
    if path.suffix in (".hpp", ".inc", ".cpp") and path.parts[0] in STORIES:
        return str(path.parent)
    return None


def sources(root=ROOT):
    """Every source of src/: its path from `root`, its room, its text."""
    for path in sorted((root / "src").rglob("*")):
        if path.suffix in (".cpp", ".hpp", ".inc"):
            name = path.relative_to(root)
            yield name, "/".join(name.parts[1:-1]), path.read_text()


def edges(found=None):
    """All pairs of rooms (from, to) whose first includes the second."""
    pairs = set()
    for _, room, text in found if found is not None else sources():
        targets = {target_of(include) for include in included(text)}
        pairs |= {(room, target) for target in targets - {None, "public", room}}
    return pairs
