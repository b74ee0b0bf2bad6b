"""What it means that a launch gave no steps, in one line that says what to do."""

from __future__ import annotations

import contextlib
import signal

from hasten.launch.launch import Outcome
from hasten.raw_run import Fetched, RawRun

MAKE_ROOM = "use a smaller batch with gradient accumulation, or activation checkpointing (torch.utils.checkpoint)"


def failure(code: int, outcome: Outcome) -> str:
    """Why a script that ended with this code cannot be measured."""
    short = next((raw for raw in outcome.raws if raw.ended_by == "out of memory"), None)
    if short is not None:
        return f"memory ran out{_batch(short)}; {MAKE_ROOM}"
    if code < 0:
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
            if name == "SIGKILL":
                return "the script was ended by SIGKILL, as the system does where memory runs out: see what takes it"
            return f"the script was ended by {name}; nothing was measured"
    return f"the script failed with exit code {code}; fix it first (its own message is above)"


def _batch(raw: RawRun) -> str:
    """With what batch, if it was seen."""
    lengths = [s.detail.num_samples for s in raw.spans if isinstance(s.detail, Fetched) and s.detail.num_samples]
    if not lengths or lengths[-1] < 2:
        return ""
    return f" at a batch of {lengths[-1]} samples"


def why_no_step(outcome: Outcome) -> str:
    """Why a script that ended well was not seen to make a step."""
    if not outcome.statuses:
        return (
            "the script ended and never imported torch where hasten could see it; "
            "is it a PyTorch script? (python -I and TORCH_DEVICE_BACKEND_AUTOLOAD=0 keep hasten out)"
        )
    if backwards := max(s.num_backwards for s in outcome.statuses):
        return f"the script ended after {backwards} backwards and no optimizer step; give it more steps to run"
    if any(s.state == "loading" for s in outcome.statuses):
        return (
            "the script ended without an optimizer step, though it iterated a loader; does the loader yield batches?"
        )
    return "the script ended without an optimizer step; name the script that trains"
