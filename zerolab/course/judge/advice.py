"""What to do about code that did not come to its end: from the trouble that was met to a learner's next step."""

from __future__ import annotations

import re

from zerolab.course.judge.bounds import NOT_WRITTEN
from zerolab.course.judge.case import Case, Trouble


def hint_for(trouble: Trouble, case: Case) -> str:
    kind, said = trouble.kind, trouble.message
    at = f" ({trouble.where})" if trouble.where else ""
    # A rank's trouble belongs to a case, so the case is named first. A cell that does not even load has run no case.
    head = f"{case.about}: " if case.about and re.match(r"(the ranks|rank \d+) ", said) else ""
    if kind == "NotImplementedError":
        return NOT_WRITTEN.message
    if kind == "DeadlockError":
        return f"{head}deadlock: {said}. {way_out(said)}"
    if kind == "MismatchError" and " is in #" in said:
        return f"{head}the ranks part ways: {said}{lengths(said, case.ranks)}{sources(said)}"
    if kind == "MismatchError":
        return f"{head}two ranks met with different messages: {said}. {alike(said)}"
    if kind == "TimeOut":
        return f"{head}it takes too long, or does not end: {said}. Look for a loop that counts far, or has no end"
    if kind == "SystemExit":
        return "it calls exit: return a value instead, the grade comes from what your function does"
    if kind in ("SIGSEGV", "SIGBUS"):
        what = "what was released, such as by resize_(0), and used again?"
        return f"{head}{said}: it read memory that is not there any more: {what}"
    if kind.startswith("SIG"):
        return f"{head}{said}: look for what ends it, and at the memory it takes"
    if kind == "NameError" and "'get_ipython'" in said:
        return f"{head}{said}{at}: an answer runs as plain Python, so delete lines that begin with % or !"
    if kind == "NameError":
        return f"{head}{said}{at}: only answer cells are graded, so keep helpers and imports inside the answer cell"
    if "process group has not been initialized" in said:
        return f"{head}torch.distributed is off limits, and not set up: build it from what you are given{at}"
    if kind == "died":
        return "the process that ran your code ended at once: look for what ends it, and at the memory it takes"
    if kind == "MemoryError" or "can't allocate memory" in said:
        return f"{head}it needs more memory than the limit{at}: look for what grows"
    if "message with itself" in said and case.ranks == 1:
        return f"{head}it sends to itself{at}: there is no neighbour, and a ring of one sends nothing"
    return f"{head}{said}{at}"


IDLE = "has nothing to receive"


def way_out(said: str) -> str:
    """What to do about a deadlock, from its report."""
    if re.search(r"in #\d+ ", said) and "has returned" in said:
        return "A collective needs every rank: which one does not call it?"
    if len(set(re.findall(r"in #(\d+) broadcast", said))) == 1 and said.count("waits to send") > 1:
        return "In a broadcast one rank sends and the others receive: all ranks must name the same src"
    for rank, verb, peer in re.findall(r"rank (\d+) (?:[^;]*? )?waits to (send to|receive from) rank (\d+)", said):
        if re.search(rf"rank {peer} has (?:already )?returned", said):
            sends, ask = ("sends to", "should not send") if verb == "send to" else (f"waits to {verb}", IDLE)
            return f"Rank {rank} {sends} a rank that has already finished: who {ask}?"
    if "waits to send" not in said:
        return f"Everybody waits to receive: who {IDLE}, and sends first?"
    return "Post a receive before you wait for a send: irecv, isend, then both wait()"


def sources(said: str) -> str:
    if len(set(re.findall(r" is in #\d+ broadcast of \d+ \w+ from (\d+)", said))) < 2:
        return ""
    return ". In a broadcast one rank sends and the others receive: all ranks must name the same src"


def lengths(said: str, ranks: int) -> str:
    """What to say of gathers of several lengths, if each is as long as a shard times the ranks."""
    found = [int(numel) for numel in re.findall(r" is in #\d+ all_gather of (\d+) ", said)]
    if len(set(found)) < 2 or any(numel % ranks for numel in found):
        return ""
    return ". Shards differ by an element: tell all_gather how long the whole is, its second argument"


def alike(said: str) -> str:
    chunk = "ask which chunk the left neighbour sends in this step"
    found = re.search(r"sends (\d+) bytes.* receives (\d+)", said)
    sizes = sorted(int(size) for size in found.groups()) if found else []
    if sizes and sizes[0] and sizes[1] % sizes[0] == 0:
        dtype = "If both have the same number of elements, the dtypes differ"
        return f"{dtype}: new tensors take the input's dtype (empty_like, new_empty). Else {chunk}"
    return chunk.capitalize()
