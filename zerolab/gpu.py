"""The one door to a GPU's streams, events and page-locked memory.

Work for a GPU is queued on streams, and the host goes on at once. What one stream writes another may read only after an
event, and memory that goes back to torch's allocator is handed out anew in the order of the stream that it came from.
A mistake there is a wrong number now and then, on some machines. So each such call of the library is made here, on
`door`: tests put other methods in the place of its own, which know what happens before what, and need no GPU for it
(`tests/streams/`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

URGENT = -1
"""The priority of a stream whose kernels go before those of others: a collective needs few of them, and others wait."""


class Door:
    """What the library asks of torch.cuda."""

    def drives(self, device: torch.device) -> bool:
        """Whether work on this device is queued on streams."""
        return device.type == "cuda"

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in a GPU's memory."""
        return tensor.is_cuda

    def enter(self, device: torch.device) -> None:
        """This thread works for `device` from now on. A new thread is on the first GPU, and what asks there for "the
        current one" would open a context on it, hundreds of megabytes for each rank."""
        torch.cuda.set_device(device)

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        """A new stream for what others wait for."""
        return torch.cuda.Stream(device, priority=URGENT)

    def current(self, device: torch.device) -> torch.cuda.Stream:
        """The stream on which this thread queues its work."""
        return torch.cuda.current_stream(device)

    @contextmanager
    def on(self, stream: torch.cuda.Stream) -> Iterator[None]:
        """Queue on `stream` what is done inside."""
        with torch.cuda.stream(stream):
            yield

    def event(self) -> torch.cuda.Event:
        return torch.cuda.Event()

    def record(self, event: torch.cuda.Event, stream: torch.cuda.Stream) -> None:
        """The event happens when the stream has done what is queued on it now."""
        event.record(stream)

    def wait(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        """What is queued on `stream` from now on runs after the event; the host does not wait."""
        stream.wait_event(event)

    def happened(self, event: torch.cuda.Event) -> bool:
        """Whether the event has happened; nobody waits for it."""
        return bool(event.query())

    def finish(self, event: torch.cuda.Event) -> None:
        """Return to the host once the event has happened."""
        event.synchronize()

    def keep(self, tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """Once let go, the tensor's memory is not handed out before `stream` has done what is queued on it then."""
        tensor.record_stream(stream)

    def drain(self, device: torch.device) -> None:
        """Return to the host once the device has done all that is queued."""
        torch.cuda.synchronize(device)

    def locked(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Host memory that a GPU copies from and to beside other work. Freed, it is not handed out before the copies
        that were queued of it have ended."""
        return torch.empty(numel, dtype=dtype, device="cpu", pin_memory=True)

    def send(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A tensor of the host on `device`: to a GPU by way of page-locked memory, so that the host need not wait."""
        if not self.drives(device):
            return tensor.to(device)
        return self.locked(tensor.numel(), tensor.dtype).view(tensor.shape).copy_(tensor).to(device, non_blocking=True)


door = Door()
