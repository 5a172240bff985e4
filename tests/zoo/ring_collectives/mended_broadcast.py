"""Right answers to `mended_broadcast` of lesson 01."""

from zoo.answers import Right

RIGHT = [
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
    Right("as bytes", """
def mended_broadcast(comm, tensor, src):
    raw = tensor.view(-1).view(torch.uint8)
    if comm.rank != src:
        comm.recv(raw, (comm.rank - 1) % comm.size)
    if (comm.rank + 1 - src) % comm.size:
        comm.send(raw, (comm.rank + 1) % comm.size)
    return tensor
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
