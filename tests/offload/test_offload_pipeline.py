"""The lane and the walk over groups: order, overlap, errors, and buffers that are never used again too early."""

import errno
import logging
import os
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import born
import pytest
import torch

from zerolab.errors import InputError, OffloadError
from zerolab.offload.buffers import aligned
from zerolab.offload.files import SwapFile
from zerolab.offload.lane import Lane, Transfer, pipeline

pytestmark = pytest.mark.timeout(60)

PAGE = 4096
SOON = 20.0
"""Seconds for what must happen at once."""


class Disk:
    """A fake: each transfer ends when the test says so, on a thread of its own, or by itself."""

    def __init__(self, by_itself: bool = False) -> None:
        self.by_itself = by_itself
        self.seen: list[str] = []
        self.begun: dict[str, threading.Event] = {}
        self.may_end: dict[str, threading.Event] = {}
        self.fails: dict[str, Exception] = {}
        self._lock = threading.Lock()

    def read(self, group: int, buffer: int) -> Transfer:
        return self._begin(f"read {group}", buffer)

    def write(self, group: int, buffer: int) -> Transfer:
        return self._begin(f"write {group}", buffer)

    def end(self, *whats: str) -> None:
        for what in whats:
            self._events(what)[1].set()

    def has_begun(self, what: str) -> bool:
        return self._events(what)[0].is_set()

    def await_begun(self, what: str) -> None:
        assert self._events(what)[0].wait(SOON), f"{what} was never begun; {self.seen}"

    def note(self, what: str) -> None:
        with self._lock:
            self.seen.append(what)

    def _events(self, what: str) -> tuple[threading.Event, threading.Event]:
        with self._lock:
            return self.begun.setdefault(what, threading.Event()), self.may_end.setdefault(what, threading.Event())

    def _begin(self, what: str, buffer: int) -> Transfer:
        transfer = Transfer()
        begun, may_end = self._events(what)

        def work() -> None:
            assert self.by_itself or may_end.wait(SOON), f"nobody let {what} end"
            self.note(f"{what} ended")
            if what in self.fails:
                raise self.fails[what]

        self.note(what)
        begun.set()
        threading.Thread(target=transfer.run, args=(work,), daemon=True).start()
        return transfer


class Stepper:
    """A walk on a thread of its own, which the test lets compute one group at a time."""

    def __init__(self, disk: Disk, groups: int, buffers: int) -> None:
        self.disk = disk
        self.error: BaseException | None = None
        self._computing = threading.Semaphore(0)
        self._go_on = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(groups, buffers), daemon=True)
        self._thread.start()

    def _run(self, groups: int, buffers: int) -> None:
        try:
            for group, _ in pipeline(range(groups), self.disk.read, self.disk.write, buffers):
                self.disk.note(f"compute {group}")
                self._computing.release()
                assert self._go_on.acquire(timeout=SOON)
        except BaseException as error:
            self.error = error

    def await_computing(self) -> None:
        assert self._computing.acquire(timeout=SOON), self.disk.seen

    def go_on(self) -> None:
        self._go_on.release()

    def join(self) -> None:
        self._thread.join(SOON)
        assert not self._thread.is_alive() and self.error is None


# Order


@pytest.mark.parametrize("buffers", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("groups", [0, 1, 2, 3, 7])
def test_each_group_is_read_then_yielded_then_written_in_order(groups: int, buffers: int) -> None:
    disk, walked = Disk(by_itself=True), []
    for group, buffer in pipeline(range(groups), disk.read, disk.write, buffers):
        disk.note(f"compute {group}")
        walked.append((group, buffer))
    assert walked == [(k, k % buffers) for k in range(groups)]
    at = {what: place for place, what in enumerate(disk.seen)}
    assert len(at) == 5 * groups
    for k in range(groups):
        cycle = [f"read {k}", f"read {k} ended", f"compute {k}", f"write {k}", f"write {k} ended"]
        if k + buffers < groups:
            cycle.append(f"read {k + buffers}")
        assert [at[what] for what in cycle] == sorted(at[what] for what in cycle)


def test_with_one_buffer_nothing_overlaps() -> None:
    disk = Disk(by_itself=True)
    for group, _ in pipeline(range(3), disk.read, disk.write, 1):
        disk.note(f"compute {group}")
    cycle = ("read {}", "read {} ended", "compute {}", "write {}", "write {} ended")
    assert disk.seen == [what.format(k) for k in range(3) for what in cycle]


# Overlap, by events


def test_with_three_buffers_a_read_a_computation_and_a_write_go_on_at_once() -> None:
    disk = Disk()
    walk = Stepper(disk, groups=5, buffers=3)
    disk.end("read 0", "read 1")
    walk.await_computing()
    walk.go_on()
    walk.await_computing()
    # Group 1 is in computation; the write of 0 and the read of 2 have begun and not ended.
    disk.await_begun("write 0")
    assert disk.has_begun("read 2") and "read 2 ended" not in disk.seen and "write 0 ended" not in disk.seen
    assert disk.seen[-1] != "read 3" and not disk.has_begun("read 3")
    # As soon as the write has ended its buffer is read into, beside the same computation.
    disk.end("write 0")
    disk.await_begun("read 3")
    assert "compute 2" not in disk.seen
    disk.end(*(f"{what} {k}" for what in ("read", "write") for k in range(5)))
    for _ in range(3):
        walk.go_on()
        walk.await_computing()
    walk.go_on()
    walk.join()


def test_with_two_buffers_the_next_group_is_read_beside_the_computation_once_its_buffer_is_written() -> None:
    disk = Disk()
    walk = Stepper(disk, groups=3, buffers=2)
    disk.await_begun("read 1")
    disk.end("read 0", "read 1")
    walk.await_computing()
    walk.go_on()
    walk.await_computing()
    disk.await_begun("write 0")
    assert not disk.has_begun("read 2")
    disk.end("write 0")
    disk.await_begun("read 2")
    assert "compute 2" not in disk.seen
    disk.end("read 2", "write 1", "write 2")
    walk.go_on()
    walk.await_computing()
    walk.go_on()
    walk.join()


def test_the_walk_ends_only_when_the_last_write_has() -> None:
    disk = Disk()
    disk.end("read 0", "read 1", "write 1")
    walk = Stepper(disk, groups=2, buffers=3)
    for _ in range(2):
        walk.await_computing()
        walk.go_on()
    disk.await_begun("write 1")
    walk._thread.join(0.2)
    assert walk._thread.is_alive()
    disk.end("write 0")
    walk.join()


def test_the_trace_tells_when_each_part_started_and_stopped() -> None:
    disk, told = Disk(by_itself=True), {}

    def trace(kind: str, group: int, start: float, stop: float) -> None:
        assert (kind, group) not in told
        told[kind, group] = (start, stop)

    for _ in pipeline(range(5), disk.read, disk.write, 3, trace):
        pass
    assert set(told) == {(kind, k) for kind in ("read", "compute", "write") for k in range(5)}
    for k in range(5):
        cycle = [told[kind, k] for kind in ("read", "compute", "write")]
        cycle += [told["read", k + 3]] if k + 3 < 5 else []
        times = [time for interval in cycle for time in interval]
        assert times == sorted(times) and times[0] > 0


# Errors


@pytest.mark.parametrize("buffers", [1, 2, 3, 4])
@pytest.mark.parametrize("what", ["read 0", "read 3", "write 0", "write 3", "write 5"])
def test_a_transfer_that_fails_ends_the_walk_with_its_error(what: str, buffers: int) -> None:
    disk = Disk(by_itself=True)
    disk.fails[what] = OffloadError(what)
    with pytest.raises(OffloadError, match=what):
        for _ in pipeline(range(6), disk.read, disk.write, buffers):
            pass
    assert all(f"{each} ended" in disk.seen for each in disk.seen if "ended" not in each)


def test_of_several_errors_the_first_is_raised() -> None:
    disk = Disk()
    disk.fails = {"read 1": OffloadError("early"), "read 0": OffloadError("late")}
    disk.end("read 1", "read 2")
    transfers: list[Transfer] = []

    def read(group: int, buffer: int) -> Transfer:
        transfers.append(disk.read(group, buffer))
        if group == 0:
            # Ends only when the other has failed.
            threading.Thread(target=lambda: (later.wait(SOON), disk.end("read 0")), daemon=True).start()
        if group == 1:
            transfers[1].add_done_callback(lambda ended: later.set())
        return transfers[-1]

    later = threading.Event()
    with pytest.raises(OffloadError, match="early"):
        list(pipeline(range(3), read, disk.write, 3))


def test_a_failed_write_shows_before_the_next_group_is_computed_on() -> None:
    disk = Disk(by_itself=True)
    disk.fails["write 0"] = OffloadError("no")
    walked, failed = [], threading.Event()

    def write(group: int, buffer: int) -> Transfer:
        transfer = disk.write(group, buffer)
        transfer.add_done_callback(lambda ended: failed.set())
        assert failed.wait(SOON)
        return transfer

    with pytest.raises(OffloadError, match="no"):
        for group, _ in pipeline(range(9), disk.read, write, 4):
            walked.append(group)
    assert walked == [0]


@pytest.mark.parametrize("when", ["at first", "after a write"])
def test_a_transfer_that_cannot_begin_ends_the_walk_with_its_error(when: str) -> None:
    disk = Disk(by_itself=True)

    def read(group: int, buffer: int) -> Transfer:
        if group == (1 if when == "at first" else 4):
            raise InputError("too small")
        return disk.read(group, buffer)

    with pytest.raises(InputError, match="too small"):
        list(pipeline(range(6), read, disk.write, 3))
    assert all(f"{each} ended" in disk.seen for each in disk.seen if "ended" not in each)


@pytest.mark.parametrize("buffers", [1, 2, 3, 4])
def test_an_error_of_the_caller_waits_for_what_is_under_way_and_begins_nothing_more(buffers: int) -> None:
    disk = Disk(by_itself=True)
    with pytest.raises(ZeroDivisionError):
        for group, _ in pipeline(range(9), disk.read, disk.write, buffers):
            if group == 2:
                raise ZeroDivisionError
    seen = list(disk.seen)
    assert all(f"{each} ended" in seen for each in seen if "ended" not in each)
    assert "write 2" not in seen and f"read {2 + buffers}" not in seen


def test_a_walk_that_is_kept_is_closed_by_its_caller(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    disk.end("read 0")
    disk.fails["read 1"] = OffloadError("lost")
    with closing(pipeline(range(9), disk.read, disk.write, 2)) as walk:
        assert next(walk) == (0, 0)
        disk.end("read 1")
    assert disk.seen[-1] == "read 1 ended" and next(walk, None) is None
    (record,) = caplog.records
    assert "a transfer failed: lost" in record.getMessage() and record.levelno == logging.ERROR


def test_an_interrupt_while_waiting_waits_for_what_is_under_way() -> None:
    disk = Disk(by_itself=True)

    class Interrupted(Transfer):
        waits = 0

        def wait(self) -> None:
            Interrupted.waits += 1
            if Interrupted.waits == 1:
                raise KeyboardInterrupt
            super().wait()

    def read(group: int, buffer: int) -> Transfer:
        transfer = Interrupted()
        threading.Thread(target=transfer.run, args=(lambda: disk.note(f"read {group} ended"),), daemon=True).start()
        return transfer

    with pytest.raises(KeyboardInterrupt):
        list(pipeline(range(9), read, disk.write, 3))
    assert sorted(disk.seen) == ["read 0 ended", "read 1 ended", "read 2 ended"] and Interrupted.waits == 4


# With a lane and a file


@pytest.fixture
def lane(tmp_path: Path) -> Iterator[Lane]:
    with Lane([SwapFile(tmp_path, "a", [3 * PAGE + k for k in range(8)])], threads=3, piece=PAGE) as lane:
        yield lane
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("buffers", [1, 2, 3, 4])
def test_a_buffer_is_not_used_again_before_its_write_has_ended(
    buffers: int, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes are slow, and each poisons its buffer when it has ended: a read that came too early is overwritten, and
    a write that came too late has the poison."""
    (file,) = lane.files
    memory = [aligned(file.span(7)) for _ in range(buffers)]
    for i in range(8):
        file.write(i, memory[0].fill_(i))
    real, slow = os.pwritev, threading.Event()

    def late(*arguments: Any) -> int:
        slow.wait(0.003)
        return real(*arguments)

    monkeypatch.setattr(os, "pwritev", late)

    def write(i: int, at: int) -> Transfer:
        transfer = lane.write(file, i, memory[at])
        transfer.add_done_callback(lambda ended: memory[at].fill_(255))
        return transfer

    for turn in range(3):
        for i, at in pipeline(range(8), lambda i, at: lane.read(file, i, memory[at]), write, buffers):
            values = memory[at][: file.span(i)]
            assert values.unique().tolist() == [i + 10 * turn]
            values += 10
    for i in range(8):
        file.read(i, memory[0])
        assert memory[0][: file.span(i)].unique().tolist() == [i + 30]


def test_a_callback_that_fails_fails_its_transfer_and_not_the_lane(lane: Lane, monkeypatch: Any) -> None:
    (file,) = lane.files
    real, go_on = os.preadv, threading.Event()
    monkeypatch.setattr(os, "preadv", lambda *arguments: go_on.wait(SOON) and real(*arguments))
    transfer = lane.read(file, 0, aligned(file.span(0)))
    transfer.add_done_callback(lambda ended: [][0])
    go_on.set()
    with pytest.raises(IndexError):
        transfer.wait()
    for i in range(8):
        lane.read(file, i, aligned(file.span(i))).wait()


def test_transfers_larger_than_a_piece_come_back_whole(lane: Lane) -> None:
    (file,) = lane.files
    written, buffer = aligned(file.span(3)).random_(0, 256), aligned(file.span(3))
    lane.write(file, 3, written).wait()
    transfer = lane.read(file, 3, buffer)
    transfer.wait()
    transfer.wait()
    assert torch.equal(written, buffer)
    assert transfer.done and 0 < transfer.started < transfer.stopped and transfer.error is None


def test_a_full_disk_comes_out_where_the_write_is_waited_for(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = lane.files

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwritev", full)
    transfer = lane.write(file, 2, aligned(file.span(2)))
    for _ in range(2):
        with pytest.raises(OffloadError, match=rf"record 2 of {file.path} could not be written: the disk is full"):
            transfer.wait()
    monkeypatch.undo()
    lane.write(file, 2, aligned(file.span(2))).wait()


def test_what_cannot_be_moved_is_refused_at_once(lane: Lane) -> None:
    (file,) = lane.files
    for call, pattern in [
        (lambda: lane.read(file, 8, aligned(PAGE)), "has no record 8"),
        (lambda: lane.write(file, 0, aligned(PAGE)), "and the buffer has 4096"),
    ]:
        call_it: Callable[[], object] = call
        with pytest.raises(InputError, match=pattern):
            call_it()


def test_reads_do_not_wait_behind_writes(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = lane.files
    real, go_on = os.pwritev, threading.Event()
    monkeypatch.setattr(os, "pwritev", lambda *arguments: go_on.wait(SOON) and real(*arguments))
    writes = [lane.write(file, i, aligned(file.span(i))) for i in range(4)]
    lane.read(file, 5, aligned(file.span(5))).wait()
    assert not any(write.done for write in writes)
    go_on.set()
    for write in writes:
        write.wait()


def test_a_transfer_keeps_its_buffer_until_it_has_ended_and_no_longer(lane: Lane, monkeypatch: Any) -> None:
    (file,) = lane.files
    real, go_on = os.pwritev, threading.Event()
    monkeypatch.setattr(os, "pwritev", lambda *arguments: go_on.wait(SOON) and real(*arguments))
    buffer = aligned(file.span(1)).fill_(9)
    gone = threading.Event()
    weakref.finalize(buffer, gone.set)
    transfer = lane.write(file, 1, buffer)
    del buffer
    assert not gone.is_set()
    go_on.set()
    transfer.wait()
    assert gone.wait(SOON)
    check = aligned(file.span(1))
    lane.read(file, 1, check).wait()
    assert check.unique().tolist() == [9]


def swap_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("swap-")]


def test_close_lets_what_was_issued_end_and_refuses_more(tmp_path: Path) -> None:
    file = SwapFile(tmp_path, "a", [PAGE] * 50)
    lane = Lane([file])
    transfers = [lane.write(file, i, aligned(PAGE)) for i in range(50)]
    lane.close()
    lane.close()
    assert all(transfer.done and transfer.error is None for transfer in transfers)
    assert not swap_threads() and not list(tmp_path.iterdir())
    with pytest.raises(RuntimeError, match="after shutdown"):
        lane.read(file, 0, aligned(PAGE))


def test_a_lane_that_nobody_holds_ends_its_threads(tmp_path: Path) -> None:
    file = SwapFile(tmp_path, "a", [PAGE])
    lane = Lane()
    lane.read(file, 0, aligned(PAGE)).wait()
    threads = swap_threads()
    del lane
    for thread in threads:
        thread.join(SOON)
    assert threads and not any(thread.is_alive() for thread in threads)


def test_a_program_that_ends_with_transfers_under_way_ends_well(tmp_path: Path) -> None:
    program = """
        import sys
        from zerolab.offload.buffers import aligned
        from zerolab.offload.files import SwapFile
        from zerolab.offload.lane import Lane

        file = SwapFile(sys.argv[1], "a", [2**22] * 16)
        lane = Lane([file], piece=2**18)
        buffers = [aligned(2**22) for _ in range(16)]
        transfers = [lane.write(file, i, buffers[i]) for i in range(16)]
    """
    ended = born.ran("-c", textwrap.dedent(program), tmp_path, capture_output=True, text=True, timeout=25, server="own")
    assert (ended.returncode, ended.stderr) == (0, "") and not list(tmp_path.iterdir())
