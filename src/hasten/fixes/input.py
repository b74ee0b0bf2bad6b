"""Fixes on the way from the disk to the batch."""

from __future__ import annotations

from hasten.agent.libraries import KEPT, KEPT_TRANSFORM
from hasten.diagnosis.case import WORTH_INFERRED
from hasten.fixes.fix import Fix, Proposal, Situation, from_finding
from hasten.fixes.own_functions import own_functions
from hasten.records import LoaderFacts, Stage

INSIDE = "hasten.fixes.inside.loaders"
OURS = "hasten.fixes.inside.own_loader"
MEMO = "hasten.fixes.inside.memo"
QUEUEING = ("too_few_workers", "shallow_prefetch", "worker_startup")
SLOW_WORK = ("slow_read", "slow_decode", "slow_transform", "slow_collate", "python_bound_data")
LOADER_SHARE = 0.15  # of the headroom: what our loader saves on average where the work itself stays
NO_LOADER = "the script uses no DataLoader"
NOT_WAITING = "training does not wait for batches"


def _train(situation: Situation) -> LoaderFacts | str:
    """The training loader, or why nothing is to be gained there."""
    train = situation.case.train
    if train is None:
        return NO_LOADER
    waits = situation.headroom >= WORTH_INFERRED * situation.case.step
    return train if waits or situation.finding(*SLOW_WORK, *QUEUEING) is not None else NOT_WAITING


def _num_workers(situation: Situation) -> list[Proposal] | str:
    train = _train(situation)
    fewer = situation.finding("too_many_workers", "thread_contention")
    if isinstance(train, str) and (fewer is None or situation.case.train is None):
        return train
    cores = max(1, int(situation.case.run.machine.num_cores))
    facts = situation.case.train
    assert facts is not None
    on = int(situation.settings.get("num_workers", facts.num_workers))
    found: list[Proposal] = []
    for name in ("too_few_workers", "too_many_workers"):
        tried, finding = situation.intervention(name), situation.finding(name)
        if tried is not None and finding is not None:
            number = int(tried.settings["num_workers"])
            found.append(Proposal(value=number, saves=finding.recoverable, because=finding.title))
    if not found and not facts.in_memory and on < cores:
        because = f"{on} of {cores} cores make batches while training waits for them"
        found.append(
            Proposal(value=cores, saves=situation.headroom * (1 - max(1, on) / (cores + 1)), because=because)
        )
    if fewer is not None and on > 1:
        found.append(Proposal(value=1, saves=0.5 * fewer.recoverable, because=fewer.title))
    return [p for p in found if p.value != on] or "there are as many workers as there are cores"


def _prefetch(situation: Situation) -> list[Proposal] | str:
    finding, tried = situation.finding("shallow_prefetch"), situation.intervention("shallow_prefetch")
    if finding is None or tried is None:
        return "a deeper queue would not have helped"
    number = int(tried.settings["prefetch_factor"])
    return [Proposal(value=number, saves=finding.recoverable, because=finding.title)]


def _persistent(situation: Situation) -> list[Proposal] | str:
    finding = situation.finding("worker_startup")
    if finding is None:
        return "starting workers takes no time worth saving"
    return [Proposal(value=True, saves=finding.recoverable, because=finding.title)]


def _loader(situation: Situation) -> list[Proposal] | str:
    train = _train(situation)
    if isinstance(train, str):
        return train
    late = situation.finding("shallow_prefetch", "worker_startup")
    # It hands samples out one by one and writes batches once; a sample of the script's own code costs what it cost.
    saves = max(LOADER_SHARE * situation.headroom, 0.6 * late.recoverable if late is not None else 0.0)
    return [Proposal(value=True, saves=saves, because="batches are written once, sample by sample")]


def _gather(situation: Situation) -> list[Proposal] | str:
    train = situation.case.train
    if train is None:
        return NO_LOADER
    if not train.in_memory:
        return "the dataset is not in memory"
    finding = situation.finding("python_bound_data")
    if finding is None:
        return "making batches sample by sample takes no time worth saving"
    return [Proposal(value=True, saves=finding.recoverable, because=finding.title)]


def _kept_seconds(stages: tuple[Stage, ...]) -> float:
    """Seconds of library calls whose results can be kept, and of the reading and resizing that goes with them."""
    kept = {(s.name, s.detail) for s in stages} & KEPT
    if kept:
        kept |= {("read", "file")}
    if any(detail.startswith("Pillow") for _, detail in kept):
        kept |= {("transform", name) for name in KEPT_TRANSFORM}
    return sum(s.seconds for s in stages if (s.name, s.detail) in kept)


def _memoizable(situation: Situation) -> tuple[LoaderFacts, float] | str:
    """The training loader, and the share (0..1) of its work that library calls are of which results can be kept."""
    train = _train(situation)
    if isinstance(train, str):
        return train
    if train.in_memory:
        return "the dataset is in memory already"
    work, kept = sum(s.seconds for s in train.stages), _kept_seconds(train.stages)
    if not work:
        return "what its samples cost is not known"
    if not kept:
        return "no sample is read through a library whose calls can be cached"
    return train, kept / work


def _cache(situation: Situation) -> list[Proposal] | str:
    found = _memoizable(situation)
    if isinstance(found, str):
        return found
    share = min(1.0, situation.diagnosis.cache.fits_share) if situation.diagnosis.cache is not None else 1.0
    # Workers are started for a cache as well.
    waited = max(0.0, situation.headroom - situation.case.phase("epoch_start"))
    saves = waited * 0.9 * share * found[1]
    return [Proposal(value="auto", saves=saves, because="files are read and decoded again in every epoch")]


def _disk_cache(situation: Situation) -> list[Proposal] | str:
    """Where memory does not hold everything, and the disk gives a decoded sample back sooner than it is computed."""
    found = _memoizable(situation)
    if isinstance(found, str):
        return found
    train, kept = found
    need, read = situation.diagnosis.cache, situation.case.run.file_read
    if need is None or need.fits_share >= 0.95:
        return "memory holds everything that can be cached"
    if read is None or not read.num_bytes or not train.num_measured_samples:
        return "how fast the disk is was not measured"
    computing = kept * sum(s.seconds for s in train.stages) / train.num_measured_samples
    reading = need.bytes_per_sample * (read.cold_seconds or read.warm_seconds) / read.num_bytes
    if reading >= computing:
        return "the disk does not give decoded samples back sooner than they are computed"
    waited = max(0.0, situation.headroom - situation.case.phase("epoch_start"))
    left = 1.0 - (need.fits_share if "cache" in situation.settings else 0.0)
    saves = waited * 0.9 * left * kept * (1.0 - reading / computing)
    because = f"{1.0 - need.fits_share:.0%} of the set does not fit in memory"
    return [Proposal(value="auto", saves=saves, because=because)]


def _pure(situation: Situation) -> list[Proposal] | str:
    train = _train(situation)
    if isinstance(train, str):
        return train
    shares = own_functions(situation.case.run)
    if not shares:
        return "no function at the top level of a module of yours takes much of a sample's time"
    saves = situation.headroom * 0.9 * sum(shares.values())
    return [Proposal(value=",".join(shares), saves=saves, because="your own code computes the same in every epoch")]


def _pixels(situation: Situation) -> list[Proposal] | str:
    if "loader" not in situation.settings:
        return "hasten's loader is not on"
    finding = situation.finding("slow_decode", "slow_transform")
    if finding is None:
        return "decoding and resizing are not what takes the time"
    return [Proposal(value="close", saves=0.3 * finding.recoverable, because=finding.title)]


RESIZE_SAVES = 0.7  # of the time of bilinear resizing: 1.02 ms became 0.23 ms (533 x 400 to 341 x 256, one core)


def _resize(situation: Situation) -> list[Proposal] | str:
    train = _train(situation)
    if isinstance(train, str):
        return train
    work = sum(s.seconds for s in train.stages)
    resizing = sum(s.seconds for s in train.stages if s.name == "transform" and s.detail == "Image.resize")
    if not resizing:
        return "no image is resized by Pillow"
    saves = situation.headroom * resizing / work * RESIZE_SAVES
    return [Proposal(value=True, saves=saves, because="Pillow resizes without vector instructions")]


def _decode(situation: Situation) -> list[Proposal] | str:
    train = _train(situation)
    if isinstance(train, str):
        return train
    speedup = train.decode_speedup
    if speedup is None or speedup.low <= 1.0:
        return "no other decoder gives the same pixels sooner"
    decode = sum(s.seconds for s in train.stages if s.name == "decode")
    work = sum(s.seconds for s in train.stages) or 1.0
    saves = situation.headroom * decode / work * (1 - 1 / speedup.value)
    return [Proposal(value=True, saves=saves, because=f"{train.decode_library} gives the same pixels sooner")]


FIXES = (
    Fix(
        name="num_workers",
        title="so many worker processes make batches",
        guarantee="identical",
        answers=("too_few_workers", "too_many_workers", *SLOW_WORK),
        propose=_num_workers,
        kind="number",
        least=0,
        installer=f"{INSIDE}:num_workers",
    ),
    Fix(
        name="prefetch_factor",
        title="so many batches lie ready for each worker",
        guarantee="identical",
        answers=("shallow_prefetch",),
        propose=_prefetch,
        kind="number",
        installer=f"{INSIDE}:prefetch_factor",
    ),
    Fix(
        name="persistent_workers",
        title="workers stay from one epoch to the next",
        guarantee="identical",
        answers=("worker_startup",),
        propose=_persistent,
        installer=f"{INSIDE}:persistent_workers",
    ),
    Fix(
        name="pin_memory",
        title="batches lie in pinned memory, from which a GPU copies faster",
        guarantee="identical",
        answers=("pageable_copy", "blocking_copy"),
        propose=from_finding("pageable_copy", otherwise="no copy from pageable memory is waited for"),
        installer=f"{INSIDE}:pin_memory",
    ),
    Fix(
        name="non_blocking",
        title="copies from pinned memory do not make the host wait",
        guarantee="identical",
        answers=("blocking_copy",),
        propose=from_finding("blocking_copy", otherwise="no copy to the device is waited for"),
        installer=f"{INSIDE}:non_blocking",
    ),
    Fix(
        name="gather",
        title="data that is in memory already is gathered a batch at a time",
        guarantee="identical",
        answers=("python_bound_data",),
        propose=_gather,
        installer=f"{OURS}:gather",
    ),
    Fix(
        name="loader",
        title="hasten's loader in the place of torch's",
        guarantee="identical",
        answers=(*SLOW_WORK, "worker_startup", "shallow_prefetch"),
        propose=_loader,
        installer=f"{OURS}:loader",
    ),
    Fix(
        name="resize",
        title="images are resized by a vectorized library, within 1/255 of Pillow's pixels",
        guarantee="precision",
        answers=("slow_transform", "slow_decode"),
        propose=_resize,
        installer="hasten.fixes.inside.resizing:resize",
    ),
    Fix(
        name="cache",
        title="what libraries read, decode and resize is cached in so much memory",
        guarantee="identical",
        answers=("slow_read", "slow_decode", "slow_transform"),
        propose=_cache,
        kind="size",
        words=("auto",),
        installer=f"{MEMO}:cache",
    ),
    Fix(
        name="disk_cache",
        title="the same on the local disk, kept from run to run",
        guarantee="identical",
        answers=("slow_read", "slow_decode", "slow_transform"),
        propose=_disk_cache,
        kind="size",
        words=("auto",),
        installer=f"{MEMO}:disk_cache",
    ),
    Fix(
        name="pure",
        title="functions that you vouch for are cached as well",
        guarantee="identical",
        answers=SLOW_WORK,
        propose=_pure,
        kind="names",
        installer=f"{MEMO}:pure",
        is_users_word=True,
    ),
    Fix(
        name="decode",
        title="JPEG files opened by Pillow are decoded by the fastest library with the same pixels",
        guarantee="identical",
        answers=("slow_decode",),
        propose=_decode,
        installer="hasten.fixes.inside.decoding:decode",
    ),
    Fix(
        name="pixels",
        title="images within 1/255 of Pillow's, in less time",
        guarantee="precision",
        answers=("slow_decode", "slow_transform"),
        propose=_pixels,
        kind="word",
        words=("identical", "close"),
        installer=f"{OURS}:pixels",
        needs=("loader",),
    ),
)
