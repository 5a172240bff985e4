"""Asynchronous calls without a second thread: announced when they are issued, done when all have announced theirs.

A call in shared memory is work for a processor, not for a wire. A thread of its own would take that processor from
the computation beside it, and wait for its turn besides. So a call is announced at once; the rank computes on, and does
its share of the call when it comes by again and finds the others announced, or at the latest when somebody waits for
the result. In between, nobody has waited for anybody.

Calls run in the order of issue, as everywhere. A wait for one runs those before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from zerolab.collectives.call import Call, current_call
from zerolab.collectives.handle import Handle
from zerolab.collectives.machine import Machine
from zerolab.collectives.meeting import DONE, HERE, Meeting
from zerolab.collectives.transport import Transport
from zerolab.errors import MismatchError

Announce = Callable[[Machine, Call, list[torch.Tensor]], Meeting]
"""Says where this rank's tensor for a call lies, given those that the call reads and writes."""


class Appointment:
    """A call that was announced."""

    def __init__(self, book: Appointments, call: Call, run: Callable[[], None], meeting: Meeting) -> None:
        self.call, self.run, self.meeting = call, run, meeting
        self._book = book
        self.entered = self.ran = self.over = False
        self.error: BaseException | None = None

    def arrive(self) -> None:
        """Return when this rank has done its share."""
        self._book.keep(self, until_over=False)

    def wait(self) -> None:
        """Return when everybody has."""
        self._book.keep(self, until_over=True)

    def end(self) -> None:
        self.over = True
        if self.meeting.at_the_end is not None:
            self.meeting.at_the_end()


class Appointments:
    """This rank's calls in order: the issuer (see `handle.py`) of ranks that share memory."""

    def __init__(self, transport: Transport, open_machine: Callable[[], Machine], announce: Announce) -> None:
        self._transport = transport
        self._open_machine, self._announce = open_machine, announce
        self._machine: Machine | None = None
        self._ahead: deque[Appointment] = deque()  # announced
        self._behind: deque[Appointment] = deque()  # our share is done, some others' is not
        self.issued = 0
        self.meeting: Meeting
        """That of the call that runs."""

    def issue(self, call: Call, run: Callable[[], None], tensors: list[torch.Tensor], result: Any, now: bool) -> Handle:
        self.issued += 1
        call = replace(call, number=self.issued)
        if self._machine is None:
            # The others are met for the first time, which takes all of them.
            self._transport.entered(call)
            try:
                self._machine = self._open_machine()
            finally:
                self._transport.left(call)
        with torch.no_grad():
            appointment = Appointment(self, call, run, self._announce(self._machine, call, tensors))
        self._ahead.append(appointment)
        if now:
            appointment.wait()
        else:
            self.poll()
        return Handle(result, appointment)

    def poll(self) -> None:
        """Do what can be done without waiting."""
        if self._machine is None:
            return
        self._machine.listen()
        while self._ahead and self._is_ready(self._ahead[0]):
            self._do_share(self._ahead.popleft())
        while self._behind and self._behind[0].meeting.missing(DONE) is None:
            self._behind.popleft().end()

    def keep(self, appointment: Appointment, until_over: bool) -> None:
        """Wait until an appointment's share is done, or until it is over. Raises what its call raised."""
        self.poll()
        while not (appointment.over if until_over else appointment.ran):
            self._wait_for_somebody()
            self.poll()
        if appointment.error is not None:
            raise appointment.error

    def close(self) -> None:
        """Do all that others may still wait for."""
        calls = [*self._behind, *self._ahead]
        if calls:
            calls[-1].wait()
        if self._machine is not None:
            self._machine.close()
            self._machine = None

    def _wait_for_somebody(self) -> None:
        assert self._machine is not None
        if self._ahead:
            self._enter(self._ahead[0])
            missing = self._ahead[0].meeting.missing(HERE)
        else:
            missing = self._behind[0].meeting.missing(DONE)
        self._transport.waits(missing)
        self._machine.listen(wait=True)
        self._transport.waits(None)

    def _is_ready(self, appointment: Appointment) -> bool:
        try:
            return appointment.meeting.missing(HERE) is None
        except MismatchError as error:
            # Whoever waits for this call hears of it.
            appointment.error = error
            return True

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
            self.meeting = appointment.meeting
            # Peers' memory is no memory of this rank: a tracker must not count it.
            with torch.no_grad(), _disable_current_modes():
                appointment.run()
            appointment.meeting.leave()
            self._behind.append(appointment)
        except Exception as error:
            appointment.error, appointment.over = error, True
        finally:
            appointment.ran = True
            self._transport.left(appointment.call)
            current_call.reset(token)
