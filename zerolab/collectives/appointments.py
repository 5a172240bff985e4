"""Asynchronous calls without a second thread: announced when they are issued, done when all have announced theirs.

A call in shared memory is work for a processor, not for a wire. A thread of its own would take that processor from
the computation beside it, and wait for its turn besides. So a call is announced at once; the rank computes on, and does
its share of the call when it comes by again and finds the others announced, or at the latest when somebody waits for
the result. In between, nobody has waited for anybody.

A rank works on its calls only while it is inside `comm`. While it computes, or waits for something else, nobody does
its share, and the other ranks may have to wait for it.

Calls of a group run in the order of issue, as everywhere. A wait for one runs those before it. A call that reads or
writes what another has yet to write, or writes what the others have yet to read, is announced when that call is over.

Each group has a book of its own, and a rank that waits for a call of one goes on with those of all the others: ranks
that issue two groups' calls in different orders do not wait for each other in a circle.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from zerolab.collectives.call import Call, current_call
from zerolab.collectives.handle import Handle
from zerolab.collectives.machine import Circle, Machine
from zerolab.collectives.meeting import DONE, HERE, Meeting
from zerolab.collectives.transport import Request, Transport
from zerolab.errors import MismatchError

Announce = Callable[[Circle, Call, list[torch.Tensor]], Meeting]
"""Says where this rank's tensor for a call lies, given those that the call reads and writes."""


class Appointment:
    """A call that was issued. `tensors` are what it reads and what it writes, in this order; a barrier has none."""

    def __init__(self, book: Appointments, call: Call, run: Callable[[], None], tensors: list[torch.Tensor]) -> None:
        self.call, self.run, self.tensors = call, run, tensors
        self._book = book
        self.meeting: Meeting | None = None
        self.entered = self.ran = self.over = False
        self.error: BaseException | None = None

    def arrive(self) -> None:
        """Return when this rank has done its share."""
        self._book.keep(self, until_over=False)

    def wait(self) -> None:
        """Return when everybody has."""
        self._book.keep(self, until_over=True)

    def must_follow(self, earlier: Appointment) -> bool:
        """Whether this call may not even be announced before the earlier one is over."""
        if not self.tensors or not earlier.tensors or earlier.meeting is None:
            return earlier.meeting is None
        reads, writes = self.tensors
        # What an earlier call brings may still be read by others, and what it writes may come only when it is over.
        return any(
            overlap(one, other)
            for one, other in [
                (reads, earlier.tensors[1]),
                (writes, earlier.tensors[1]),
                (writes, earlier.meeting.tensor),
            ]
        )

    def end(self) -> None:
        """The call is over for everybody. Its tensors are let go at once, whoever keeps the handle."""
        assert self.meeting is not None
        at_the_end, self.meeting.at_the_end = self.meeting.at_the_end, None
        if at_the_end is not None:
            with torch.no_grad():
                at_the_end()
        self.over = True
        self.meeting, self.tensors, self.run = None, [], _nothing


def _nothing() -> None:
    """What is left to do of a call that is over."""


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.data_ptr() < other.data_ptr() + other.nbytes and other.data_ptr() < one.data_ptr() + one.nbytes


class Desk:
    """What all books of a rank share: the machine, once the others are met, and each other."""

    def __init__(self, open_machine: Callable[[], Machine]) -> None:
        self._open_machine = open_machine
        self.machine: Machine | None = None
        self.books: list[Appointments] = []

    def open(self) -> None:
        self.machine = self._open_machine()

    def poll(self) -> None:
        """Do what can be done without waiting, for all groups."""
        if self.machine is None:
            return
        self.machine.listen()
        while any([book.go_on() for book in self.books]):
            pass

    def close(self) -> None:
        if self.machine is not None:
            self.machine.close()
            self.machine = None


class Appointments:
    """This rank's calls in one group, in order: the issuer (see `handle.py`) of ranks that share memory. `beside` is
    the book of the group that this one was split from; without, it is the world's."""

    def __init__(
        self,
        transport: Transport,
        open_machine: Callable[[], Machine],
        announce: Announce,
        beside: Appointments | None = None,
    ) -> None:
        self._transport = transport
        self._announce = announce
        self._owns = beside is None
        self._desk: Desk = Desk(open_machine) if beside is None else beside._desk
        self._desk.books.append(self)
        self._circle: Circle | None = None
        self._ahead: deque[Appointment] = deque()  # our share is to be done
        self._behind: deque[Appointment] = deque()  # it is done, and some others' is not
        self.issued = 0
        self.meeting: Meeting
        """That of the call that runs."""

    def issue(self, call: Call, run: Callable[[], None], tensors: list[torch.Tensor], result: Any, now: bool) -> Handle:
        self.issued += 1
        call = replace(call, number=self.issued)
        appointment = Appointment(self, call, run, tensors)
        if self._desk.machine is None:
            # The others are met for the first time, which takes all of them: a wait, in this call. (A group is made by
            # a call of those that it is made of, so they have met by then.)
            self._enter(appointment)
            self._desk.open()
        self._ahead.append(appointment)
        if now:
            appointment.wait()
        else:
            self.poll()
        return Handle(result, appointment)

    def poll(self) -> None:
        """Do what can be done without waiting."""
        self._desk.poll()

    def go_on(self) -> bool:
        """Announce what can be announced and take a step, if one can be taken; whether one was."""
        # The end of one call may let another be announced, for which the others may be waiting already.
        self._announce_all()
        return self._advance()

    def attend(self, request: Request) -> None:
        """Wait for a message, and meanwhile do what others may wait for before they send it."""
        if not any(book._ahead for book in self._desk.books):
            request.wait()
            return
        with ThreadPoolExecutor(1) as aside:
            message = aside.submit(request.wait)
            while not message.done():
                self.poll()
                time.sleep(1e-4)
            message.result()

    def keep(self, appointment: Appointment, until_over: bool) -> None:
        """Wait until an appointment's share is done, or until it is over. Raises what its call raised."""
        self.poll()
        while not (appointment.over if until_over else appointment.ran):
            self._wait_for_somebody()
            self.poll()
        if appointment.error is not None:
            raise appointment.error

    def close(self) -> None:
        """Do all that others may still wait for. The world's book, which is closed last, closes the machine."""
        calls = [*self._behind, *self._ahead]
        if calls:
            calls[-1].wait()
        if self._owns:
            self._desk.close()

    def _advance(self) -> bool:
        """Do our share of the next call, or end the first, if either can be."""
        if self._ahead and self._is_ready(self._ahead[0]):
            self._do_share(self._ahead.popleft())
        elif self._behind and self._is_over(self._behind[0]):
            self._behind.popleft().end()
        else:
            return False
        return True

    def _announce_all(self) -> None:
        """Announce what may be announced, in order."""
        if not self._ahead:
            return
        if self._circle is None:
            assert self._desk.machine is not None
            self._circle = Circle(self._desk.machine, self._transport.within)
        earlier = list(self._behind)
        for appointment in self._ahead:
            if appointment.meeting is None:
                if any(map(appointment.must_follow, earlier)):
                    return
                with torch.no_grad():
                    appointment.meeting = self._announce(self._circle, appointment.call, appointment.tensors)
            earlier.append(appointment)

    def _wait_for_somebody(self) -> None:
        assert self._desk.machine is not None
        meeting, kind = None, HERE
        if self._ahead:
            self._enter(self._ahead[0])
            meeting = self._ahead[0].meeting
        if meeting is None:
            # What is not announced yet follows one that is not over.
            meeting, kind = self._behind[0].meeting, DONE
        assert meeting is not None
        self._transport.waits(meeting.missing(kind))
        self._desk.machine.listen(wait=True)
        self._transport.waits(None)

    def _is_ready(self, appointment: Appointment) -> bool:
        try:
            return appointment.meeting is not None and appointment.meeting.missing(HERE) is None
        except MismatchError as error:
            # Whoever waits for this call hears of it.
            appointment.error = error
            return True

    def _is_over(self, appointment: Appointment) -> bool:
        return appointment.meeting is not None and appointment.meeting.missing(DONE) is None

    def _enter(self, appointment: Appointment) -> None:
        if not appointment.entered:
            appointment.entered = True
            self._transport.entered(appointment.call)

    def _do_share(self, appointment: Appointment) -> None:
        token = current_call.set(appointment.call)
        try:
            self._enter(appointment)
            if appointment.error is not None:
                raise appointment.error
            assert appointment.meeting is not None
            self.meeting = appointment.meeting
            # Peers' memory is no memory of this rank: a tracker must not count it.
            with torch.no_grad(), _disable_current_modes():
                appointment.run()
            del self.meeting
            appointment.meeting.leave()
            self._behind.append(appointment)
        except Exception as error:
            appointment.error, appointment.over = error, True
        finally:
            appointment.ran = True
            self._transport.left(appointment.call)
            current_call.reset(token)
