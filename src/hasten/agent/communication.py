"""What ranks exchange: the time in which the training thread waits for a collective; and how all of them turn together.

A wait that Python makes (`torch.distributed` functions, FSDP) is marked where it happens. DistributedDataParallel waits in
C++, at the end of its backward; its own timers say how much of the all-reduce the backward does not hide. They speak of an
iteration once the next one has begun.

A rank that ended by itself would leave the others waiting in a collective, and one that enables an optimization by itself
would measure a mixture. So the first whose segment is full says with which step all of them turn, and by which history they
choose what comes next: in a file in the launch's folder, or, where each host has a launch of its own, through the job's own store.
Through that store, the ranks of other launches hand their records over.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import socket
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.parallel import DistributedDataParallel

from hasten.agent.loaders import is_rank
from hasten.agent.marks import Marks
from hasten.agent.segments import History
from hasten.errors import RecordError
from hasten.patches import Patches, warn
from hasten.protocol import from_json, read, to_json
from hasten.raw_run import DeviceSpan, Exchange, RawDdp, RawGroup, RawRun

OFTEN, USUAL = 1, 100  # iterations of DDP from one that it times to the next
JOB = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
TURN = "turn"  # in the launch's folder, and in the store
TOKEN = "token"  # a file of rank 0 whose name is in the store: a rank that finds it writes into the same folder
LOOK = 0.1  # seconds between two looks into the store
PATIENCE = 4.0  # seconds for the records of the other hosts; less than hasten waits for the ranks of this one
CHUNK = 4 << 20  # bytes of a value in the store


class Communication:
    """The collectives of one process."""

    def __init__(self, marks: Marks, patches: Patches) -> None:
        self.group: RawGroup | None = None  # None: no process group
        self._marks = marks
        self._ddps: WeakKeyDictionary[DistributedDataParallel, int] = WeakKeyDictionary()  # iterations that were read
        self._backward_end: float | None = None
        self._end_before: float | None = None  # of the step before
        self._is_timed = False  # DDP times every iteration
        patches.wrap(DistributedDataParallel, "__init__", self._noting_ddp)
        patches.on_undo(lambda: self._time(USUAL))
        if torch.distributed.is_available():
            patches.wrap(torch.distributed.distributed_c10d.Work, "wait", self._waiting)

    def _waiting(self, original: Callable[..., object]) -> Callable[..., object]:
        marks = self._marks

        @functools.wraps(original)
        def wait(work: object, *arguments: object, **settings: object) -> object:
            if not marks.full or get_ident() != marks.thread or "communication" in marks.open:
                return original(work, *arguments, **settings)
            place = -1 if marks.open else marks.place(1)
            start = marks.enter("communication")
            try:
                return original(work, *arguments, **settings)
            finally:
                marks.leave("communication", start, Exchange(place))

        return wait

    def _noting_ddp(self, original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def __init__(ddp: DistributedDataParallel, *arguments: object, **settings: object) -> None:
            original(ddp, *arguments, **settings)
            self._ddps[ddp] = 0

        return __init__

    def backward_ends(self, now: float) -> None:
        """An outermost backward has ended."""
        self._backward_end = now

    def step_ends(self) -> None:
        """A step has ended: DDP's timers speak of the one before."""
        before, self._end_before = self._end_before, self._backward_end
        if self.group is None:
            self.group = _group()
        if not self._ddps or not (self._marks.full or self._is_timed):
            return
        try:
            if self._is_timed and before is not None:
                for ddp in list(self._ddps):
                    self._read(ddp, before)
            if self._is_timed != self._marks.full:
                self._time(OFTEN if self._marks.full else USUAL)
        except Exception as error:  # of functions that are not public
            self._ddps.clear()
            warn(f"DistributedDataParallel is no longer timed ({error!r})")

    def _time(self, interval: int) -> None:
        self._is_timed = interval == OFTEN
        for ddp in list(self._ddps):
            ddp._set_ddp_runtime_logging_sample_rate(interval)  # pyright: ignore[reportPrivateUsage]

    def _read(self, ddp: DistributedDataParallel, end: float) -> None:
        timed: dict[str, Any] = ddp._get_ddp_logging_data()  # pyright: ignore[reportPrivateUsage]
        known, self._ddps[ddp] = self._ddps[ddp], timed.get("iteration", 0)
        if known in (0, self._ddps[ddp]):
            return
        hidden = timed.get("backward_compute_comm_overlap_time", 0)
        seconds = max(0, timed.get("backward_comm_time", 0) - hidden) / 1e9
        if self._marks.device is not None:
            # The backward's own events hold it, too.
            self._marks.device.spans += [
                DeviceSpan("communication", end - seconds, seconds, waited=False),
                DeviceSpan("backward", end - seconds, -seconds, waited=False),
            ]
        else:
            self._marks.add("communication", end - seconds, Exchange(-1), end=end)

    def raw(self) -> RawGroup | None:
        """What is known of the process group, with the models in it."""
        if self.group is not None:
            with contextlib.suppress(Exception):  # as above
                self.group.ddps = tuple(map(_facts, list(self._ddps)))
        return self.group


@dataclass(frozen=True, kw_only=True)
class Turn:
    """When all ranks end a segment, and the history by which they choose the next one."""

    step: int  # with its end
    history: History


class Together:
    """One rank among the others of its launch: all are in the same segment of the same program in every step.

    Otherwise an optimization would be on in one rank and off in another, and a rank that has ended waited for.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0  # of turns that were taken
        self._turn: Turn | None = None  # the next one, once it is known
        self._proposed = False
        self._looked_at = 0.0
        self._store: Any = None
        if _may_be_apart():
            distributed: Any = torch.distributed
            prefix = f"hasten/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}"
            self._store = distributed.PrefixStore(prefix, distributed.distributed_c10d._get_default_store())

    def ends(self, full: bool, done: int, ended: Callable[[], History]) -> bool:
        """Whether all ranks end their segment with this step.

        Args:
            full: whether this rank's is full.
            done: steps that were made here, this one included.
            ended: the history as it is once the segment ends now, which is proposed to all.
        """
        if self._turn is None:
            self._turn = self._agreed()
        if self._turn is None and full and not self._proposed:
            self._proposed = True
            self._propose(done, ended())
        return self._turn is not None and done >= self._turn.step

    def take(self) -> History | None:
        """All turn now: the history by which each of them continues; None where that needs no agreement.

        It needs none where the first step is all of the warm-up, on every rank.
        """
        if self._turn is None:
            return None
        history = self._turn.history
        self._turn, self._proposed = None, False
        self._number += 1
        return history

    def _propose(self, done: int, history: History) -> None:
        """Have all ranks turn soon. The first proposal counts."""
        if self._store is None:
            # No rank ends the next step before this one has taken part in it: all of them will have seen the file.
            turn = to_json(Turn(step=done + 1, history=history))
            written = self._folder / f"{TURN}-{os.getpid()}"
            written.write_text(turn, encoding="utf-8")
            with contextlib.suppress(FileExistsError):
                os.link(written, self._file)  # it is there with its content, or not at all
            written.unlink()
            return
        step = done + 2 + math.ceil(2 * LOOK / max(history.step_seconds, 1e-6))
        with contextlib.suppress(RuntimeError):
            self._store.compare_set(self._key, "", to_json(Turn(step=step, history=history)))

    def _agreed(self) -> Turn | None:
        try:
            if self._store is None:
                return read(Turn, self._file) if self._file.exists() else None
            now = time.monotonic()
            if now - self._looked_at < LOOK:
                return None
            self._looked_at = now
            found = self._store.get(self._key) if self._store.check([self._key]) else None
            return None if found is None else from_json(Turn, found, source=self._key)
        except (OSError, RecordError, RuntimeError):
            return None

    @property
    def _key(self) -> str:
        return f"{TURN}-{self._number}"

    @property
    def _file(self) -> Path:
        return self._folder / f"{TURN}.{self._number}"

    # ---------------------------------------------------------------------------------------- several launches

    def hand_over(self, raw: RawRun) -> None:
        """Give rank 0 this record, or as rank 0 collect those of other launches; what does not come in time is missing."""
        if self._store is None or raw.group is None:
            return
        with contextlib.suppress(Exception):  # the store may be gone, with whom it belongs to
            if raw.rank:
                self._send(raw)
            else:
                self._collect(raw.group.world_size)

    def _send(self, raw: RawRun) -> None:
        shared = self._store.check([TOKEN]) and (self._folder / self._store.get(TOKEN).decode()).exists()
        packed = b"" if shared else zlib.compress(to_json(raw).encode(), level=1)
        chunks = [packed[n : n + CHUNK] for n in range(0, len(packed), CHUNK)]
        for number, chunk in enumerate(chunks):
            self._store.set(f"record/{raw.rank}/{number}", chunk)
        self._store.set(f"record/{raw.rank}", str(len(chunks)))  # last: all of it is there

    def share(self, rank: int) -> None:
        """As rank 0, leave a file by which others see whether they write into the same folder."""
        if self._store is not None and not rank:
            token = f"{TOKEN}-{os.urandom(8).hex()}"
            with contextlib.suppress(OSError, RuntimeError):
                (self._folder / token).touch()
                self._store.set(TOKEN, token)

    def _collect(self, world_size: int) -> None:
        deadline = time.monotonic() + PATIENCE
        waited = set(range(1, world_size))
        while waited and time.monotonic() < deadline:
            for rank in [rank for rank in waited if self._store.check([f"record/{rank}"])]:
                waited.discard(rank)
                number = int(self._store.get(f"record/{rank}"))
                packed = b"".join(self._store.get(f"record/{rank}/{n}") for n in range(number))
                if packed:
                    raw = from_json(RawRun, zlib.decompress(packed), source=f"the record of rank {rank}")
                    name = f"{RawRun.__name__.lower()}-of-rank-{raw.rank}.json"
                    (self._folder / name).write_text(to_json(raw), encoding="utf-8")
            time.sleep(0.05)


def _may_be_apart() -> bool:
    """Whether the ranks may be in several launches of hasten: on several hosts, or as several tasks of srun or mpirun."""
    local = os.environ.get("LOCAL_WORLD_SIZE")  # torchrun, which hasten starts
    if local is not None:
        return int(local) < torch.distributed.get_world_size()
    return bool({"SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"} & {*os.environ})


def _group() -> RawGroup | None:
    if not is_rank():
        return None
    return RawGroup(
        rank=torch.distributed.get_rank(),
        world_size=torch.distributed.get_world_size(),
        backend=torch.distributed.get_backend(),
        host=socket.gethostname(),
        node=int(os.environ.get("GROUP_RANK") or os.environ.get("SLURM_NODEID") or 0),
        job="/".join(os.environ.get(name, "") for name in JOB),
        omp_threads=os.environ.get("OMP_NUM_THREADS"),
        is_elastic="TORCHELASTIC_RUN_ID" in os.environ,
    )


def _facts(ddp: DistributedDataParallel) -> RawDdp:
    known: dict[str, Any] = ddp._get_ddp_logging_data()  # pyright: ignore[reportPrivateUsage]
    trained = [p for p in ddp.parameters() if p.requires_grad]
    return RawDdp(
        num_bytes=sum(p.numel() * p.element_size() for p in trained),
        find_unused=bool(ddp.find_unused_parameters),
        unused_bytes=int(known.get("unused_parameter_size", 0)),
        static_graph=bool(ddp.static_graph),
        bucket_view=bool(ddp.gradient_as_bucket_view),
        hook=str(known.get("comm_hook", "")),
    )
