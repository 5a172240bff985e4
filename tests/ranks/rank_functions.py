"""Functions that ranks of the tests run. They live apart from the tests, so that a rank need not import pytest."""

import contextlib
import gc
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy
import torch

from zerolab.course.grade import cage
from zerolab.course.grade.forked import fork_server
from zerolab.ranks import launch


def limits_itself_in_limits(path):
    """What becomes of a grader's limits where files are limited to a megabyte already."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))
    cage.limit(2048)
    Path(path).write_text(str(resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def write_down(text, path):
    Path(path).write_text(text)


def who_and_how_many(comm):
    return comm.rank, comm.size


def total_of_ranks(comm, plus=0.0):
    return comm.all_reduce(torch.tensor([comm.rank + plus])).item()


def random_numbers(comm):
    before = torch.randn(3).tolist(), random.random(), numpy.random.rand()
    comm.barrier()
    # Another rank may have drawn in between; it must not show.
    after = torch.randn(3 + comm.rank).sum().item(), random.random(), numpy.random.rand()
    return before, after


def normal_numbers(comm):
    """Numpy draws normal numbers in pairs and keeps the second: others have their turn between the two; rank 0 draws
    none."""
    drawn = []
    for turn in range(3):
        if 0 < comm.rank != turn:
            drawn.append(numpy.random.randn())
        comm.barrier()
    return drawn


def numbers_of_everything(comm):
    """Collectives of all kinds, ordinary and asynchronous, on sizes that do not divide."""
    torch.manual_seed(comm.rank)
    flat = torch.randn(101)
    handle = comm.all_reduce_async(flat.clone(), average=True)
    shard = comm.reduce_scatter(flat)
    whole = comm.all_gather(shard, numel=101)
    told = comm.broadcast(torch.full((3,), float(comm.rank)), src=comm.size - 1)
    comm.barrier()
    return handle.wait(), whole, told, torch.get_num_threads()


def three_lines(comm):
    for line in range(3):
        print(f"line {line} of {comm.rank}")
    os.write(1, b"noise that no notebook should show\n")
    print("a warning", file=sys.stderr)


def prints_in_pieces(comm):
    """One line a rank, of which each has a piece out before any has the next."""
    for piece in range(4):
        print(f"{piece} of {comm.rank}", end=" " if piece < 3 else "\n", flush=True)
        comm.barrier()


def sum_and_weight(comm, weight):
    return os.getpid(), comm.all_reduce(weight.clone()).sum().item(), weight


def takes_more_memory_than_there_is(comm, how):
    if comm.rank == 1:
        bytearray(2**60) if how == "python" else torch.empty(2**50)
    comm.barrier()


def only_rank_0_prints(comm):
    if comm.rank == 0:
        print("loss 1.5")


def raises_on(comm, rank, message="bad shard"):
    if comm.rank == rank:
        print("before the failure")
        raise ValueError(message)
    comm.barrier()


def all_raise_alike(comm):
    time.sleep(0.05 * (comm.size - comm.rank))
    raise ValueError("every rank is wrong")


def raises_after_a_peer_is_gone(comm):
    """Rank 1 closes its connections and then raises: the others see a lost connection first."""
    if comm.rank == 1:
        torch.distributed.destroy_process_group()
        time.sleep(0.1)
        raise ValueError("the first cause")
    comm.all_reduce(torch.ones(10))


def is_killed(comm):
    comm.barrier()
    if comm.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()


def leaves_by_os_exit(comm):
    if comm.rank == 1:
        os._exit(7)
    comm.barrier()


def leaves_by_sys_exit(comm):
    if comm.rank == 1:
        sys.exit(3)
    comm.barrier()


def what_was_there_before(comm):
    return "torch._dynamo" in sys.modules, gc.isenabled(), gc.get_freeze_count() > 10_000


class OutOfTheOrdinary(BaseException):
    """What `except Exception` lets pass, as pytest's own failures are."""


def raises_a_base_exception(comm):
    if comm.rank == 1:
        raise OutOfTheOrdinary("seen")
    comm.barrier()


def ignores_the_end(comm, folder):
    """Cannot be ended politely, and leaves its process number."""
    if hasattr(signal, "SIGTERM"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note_process(folder, comm.rank)
    if comm.rank == 0:
        raise ValueError("now")
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(60)


def fails_with_a_helper_running(comm, folder):
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    with open(os.path.join(folder, f"pid-{comm.rank}"), "w") as file:
        file.write(str(helper.pid))
    comm.barrier()
    raise ValueError("the helper is left alone")


def note_process(folder, rank):
    with open(os.path.join(folder, f"pid-{rank}.part"), "w") as file:
        file.write(str(os.getpid()))
    os.rename(os.path.join(folder, f"pid-{rank}.part"), os.path.join(folder, f"pid-{rank}"))


def note_and_sleep(comm, folder):
    note_process(folder, comm.rank)
    time.sleep(60)


def other_collective(comm):
    if comm.rank == 1:
        comm.all_gather(torch.ones(4))
    else:
        comm.all_reduce(torch.ones(8))


def other_size(comm):
    comm.all_reduce(torch.ones(8 + comm.rank))


def returns_early(comm):
    if comm.rank != 1:
        comm.all_reduce(torch.ones(8))


def has_one_batch_fewer(comm):
    """On rank 1, which returns when the others are in their last call."""
    for _ in range(3 - (comm.rank == 1)):
        comm.all_reduce(torch.ones(8))
    if comm.rank == 1:
        time.sleep(0.3)


def never_sent(comm):
    if comm.rank == 2:
        comm.recv(torch.ones(10), 1)


def circle_of_receives(comm):
    comm.recv(torch.ones(10), (comm.rank + 1) % comm.size)


def spins_on_rank_1(comm):
    if comm.rank == 1:
        while True:
            pass
    comm.barrier()


def spins_in_the_middle_of_a_call(comm, note):
    """Rank 1 has begun it, so that rank 0 does its part and then waits for rank 1's."""
    comm.barrier()
    if comm.rank == 1:
        comm.all_gather_async(torch.ones(4))
        note.touch()
        spins_on_rank_1(comm)
    while not note.exists():
        time.sleep(0.01)
    comm.all_gather(torch.ones(4))


def sleeps_on_rank_1(comm, seconds):
    if comm.rank == 1:
        time.sleep(seconds)


def returns_a_generator(comm):
    return (number for number in range(3))


def returns_megabytes(comm, megabytes):
    return torch.zeros(megabytes * 250_000)


def launches_by_a_forked_server(seen):
    """As the process does that runs learners' answers; its rank launches, too."""
    fork_server()
    Path(seen).write_text(str(launch(launches_inside, "processes", ranks=1, timeout=50)[0]))


def launches_inside(comm, world):
    return list(launch(who_and_how_many, ranks=2, timeout=60, world=world))


def environment_of(comm, name):
    return os.environ.get(name), os.getcwd()


def messages_by_hand(transport):
    """A ring of messages on the bare transport, of dtypes and shapes that libraries often forget."""
    right, left = (transport.rank + 1) % transport.size, (transport.rank - 1) % transport.size
    arrived = []
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.int16, torch.complex64):
        for shape in ((), (3,), (2, 5)):
            incoming = torch.zeros(shape, dtype=dtype)
            transport.exchange(torch.full(shape, transport.rank % 2).to(dtype), right, incoming, left, tag=3)
            arrived.append(bool((incoming == torch.full(shape, left % 2).to(dtype)).all()))
    return all(arrived)


def tags_out_of_order(comm):
    transport = comm.transport
    if comm.rank == 0:
        sends = [transport.isend(torch.full((2,), float(tag)), 1, tag) for tag in (1, 2, 3)]
        for send in sends:
            send.wait()
        return None
    boxes = {tag: torch.zeros(2) for tag in (3, 1, 2)}
    receives = [transport.irecv(box, 0, tag) for tag, box in boxes.items()]
    for receive in receives:
        receive.wait()
    return {tag: box[0].item() for tag, box in boxes.items()}


def drops_its_send(comm):
    if comm.rank == 0:
        comm.isend(torch.ones(4), 1)
    else:
        arrived = torch.empty(4)
        comm.irecv(arrived, 0).wait()


def drops_its_receive(comm):
    if comm.rank == 0:
        comm.isend(torch.ones(4), 1).wait()
    else:
        comm.irecv(torch.empty(4), 0)


def drops_many(comm):
    if comm.rank == 0:
        kept = [comm.isend(torch.ones(1, dtype=torch.uint8), 1) for _ in range(3)]
        assert len(kept) == 3
    else:
        for _ in range(3):
            comm.irecv(torch.empty(1, dtype=torch.uint8), 0).wait()


def drops_its_send_and_listens(comm):
    box = torch.full((1,), 4.0)
    if comm.rank == 0:
        comm.isend(box, 1)
        gc.collect()
        comm.recv(answer := torch.empty(1), 1)
        raise ValueError(f"heard {answer.item()}")
    time.sleep(0.3)
    comm.recv(box, 0)
    comm.send(box, 0)


def sends_another_size(comm, sent, received):
    if comm.rank == 0:
        comm.isend(torch.ones(sent), 1).wait()
    else:
        comm.irecv(torch.empty(received), 0).wait()


def calls_once_more_and_late(comm):
    comm.all_reduce(torch.ones(2))
    if comm.rank == 0:
        time.sleep(0.7)
        comm.all_reduce(torch.ones(2))
