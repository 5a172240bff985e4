"""Answers to `mended_broadcast` of lesson 01, wrong and right."""

from zoo.answers import Right, model

MODEL = model("01_ring_collectives", "mended_broadcast")

RIGHT = [
    Right("plain", MODEL),
    Right("distance", """
def mended_broadcast(comm, tensor, src):
    distance = (comm.rank - src) % comm.size
    if distance > 0:
        comm.recv(tensor, (comm.rank + comm.size - 1) % comm.size)
    if distance < comm.size - 1:
        comm.send(tensor, (comm.rank + 1) % comm.size)
    return tensor
"""),
    Right("order list", """
def mended_broadcast(comm, tensor, src):
    order = [*range(src, comm.size), *range(src)]
    at = order.index(comm.rank)
    if order[:at]:
        comm.irecv(tensor, order[at - 1]).wait()
    if order[at + 1:]:
        request = comm.isend(tensor, order[at + 1])
        request.wait()
    return tensor
"""),
    Right("buffer then copy_", """
def mended_broadcast(comm, tensor, src):
    if comm.size > 1:
        if comm.rank == src:
            comm.send(tensor, (src + 1) % comm.size)
        else:
            box = torch.empty_like(tensor)
            comm.recv(box, (comm.rank - 1) % comm.size)
            tensor.copy_(box)
            if (comm.rank + 1) % comm.size != src:
                comm.send(tensor, (comm.rank + 1) % comm.size)
    return tensor
"""),
    Right("hops loop", """
def mended_broadcast(comm, tensor, src):
    for hop in range(comm.size - 1):
        giver, taker = (src + hop) % comm.size, (src + hop + 1) % comm.size
        if comm.rank == giver:
            comm.send(tensor, taker)
        elif comm.rank == taker:
            comm.recv(tensor, giver)
    return tensor
"""),
    Right("flattened", """
def mended_broadcast(comm, tensor, src):
    flat = tensor.view(-1)
    before, after = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    steps = []
    if comm.rank != src: steps.append(lambda: comm.recv(flat, before))
    if after != src: steps.append(lambda: comm.send(flat, after))
    for step in steps:
        step()
    return tensor
"""),
    # A second reading of the text alone.
    Right("as bytes", """
def mended_broadcast(comm, tensor, src):
    raw = tensor.view(-1).view(torch.uint8)
    if comm.rank != src:
        comm.recv(raw, (comm.rank - 1) % comm.size)
    if (comm.rank + 1 - src) % comm.size:
        comm.send(raw, (comm.rank + 1) % comm.size)
    return tensor
"""),
    Right("a recursive relay", """
def mended_broadcast(comm, tensor, src):
    def relay(holder, left):
        if not left:
            return tensor
        following = (holder + 1) % comm.size
        if comm.rank == holder:
            comm.send(tensor, following)
        if comm.rank == following:
            comm.recv(tensor, holder)
        return relay(following, left - 1)
    return relay(src, comm.size - 1)
"""),
    Right("match", """
def mended_broadcast(comm, tensor, src):
    right, left = (comm.rank + 1) % comm.size, (comm.rank + comm.size - 1) % comm.size
    match (comm.rank == src, right == src):
        case True, True:
            pass
        case True, False:
            comm.isend(tensor, right).wait()
        case False, True:
            comm.irecv(tensor, left).wait()
        case _:
            comm.irecv(tensor, left).wait()
            comm.isend(tensor, right).wait()
    return tensor
"""),
    Right("set_ to the received", """
def mended_broadcast(comm, tensor, src):
    if comm.rank != src:
        came = torch.empty_like(tensor)
        comm.recv(came, (comm.rank - 1) % comm.size)
        tensor[...] = came
    if (comm.rank + 1) % comm.size != src:
        comm.send(tensor.clone(), (comm.rank + 1) % comm.size)
    return tensor
"""),
    # Callable objects, blocking messages, chunks without elements that are not sent.
    Right("through a flat temporary", """
def mended_broadcast(comm, tensor, src):
    right = (comm.rank + 1) % comm.size
    flat = tensor.reshape(-1).clone()
    if comm.rank != src:
        comm.irecv(flat, comm.rank - 1 if comm.rank else comm.size - 1).wait()
        tensor.view(-1)[:] = flat
    if right != src:
        comm.isend(flat, right).wait()
    return tensor
"""),
]  # fmt: skip
