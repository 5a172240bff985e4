"""Answers to `mended_broadcast` of lesson 01, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("01_ring_collectives", "mended_broadcast")
MENDED = """
def mended_broadcast(comm, tensor, src):
    right, box = (comm.rank + 1) % comm.size, tensor
    if comm.rank != src:
        comm.recv(box, (comm.rank - 1) % comm.size)
    if right != src:
        comm.send(box, right)
    return tensor
"""
BROADCAST = """
def mended_broadcast(comm, tensor, src):
    if comm.rank != src:
        came = comm.recv(torch.empty_like(tensor), (comm.rank - 1) % comm.size)
        tensor.copy_(came)
    if (comm.rank + 1) % comm.size != src:
        comm.send(tensor, (comm.rank + 1) % comm.size)
    return tensor
"""

WRONG = [
    blank("mended_broadcast"),
    Wrong("does not wait", """
def mended_broadcast(comm, tensor, src):
    if comm.rank != src:
        comm.recv(tensor, (comm.rank - 1) % comm.size)
    if (comm.rank + 1) % comm.size != src:
        comm.isend(tensor, (comm.rank + 1) % comm.size)
    return tensor
""", "waited for what it is sending"),
    Wrong("element by element", """
def mended_broadcast(comm, tensor, src):
    for element in tensor.split(1):
        if comm.rank != src:
            comm.recv(element, (comm.rank - 1) % comm.size)
        if (comm.rank + 1) % comm.size != src:
            comm.send(element, (comm.rank + 1) % comm.size)
    return tensor
""", "messages: at most one is asked for"),
    Wrong("source is 0", """
def mended_broadcast(comm, tensor, src):
    if comm.rank:
        comm.recv(tensor, comm.rank - 1)
    if comm.rank + 1 < comm.size:
        comm.send(tensor, comm.rank + 1)
    return tensor
""", "rank 0's tensor, whatever src is"),
    Wrong("still broken", """
def mended_broadcast(comm, tensor, src):
    if comm.rank:
        comm.recv(tensor, (comm.rank - 1) % comm.size)
    comm.send(tensor, (comm.rank + 1) % comm.size)
    return tensor
""", "from rank 0: deadlock"),
    Wrong("half mended: the source does not wait", """
def mended_broadcast(comm, tensor, src):
    if comm.rank != src:
        comm.recv(tensor, (comm.rank - 1) % comm.size)
    comm.send(tensor, (comm.rank + 1) % comm.size)
    return tensor
""", "sends to a rank that has already finished: who should not send?"),
    Wrong("half mended: nobody sends back", """
def mended_broadcast(comm, tensor, src):
    if comm.rank:
        comm.recv(tensor, (comm.rank - 1) % comm.size)
    if (comm.rank + 1) % comm.size != src:
        comm.send(tensor, (comm.rank + 1) % comm.size)
    return tensor
""", "receive from a rank that has already finished: who has nothing to receive?"),
    Wrong("everybody receives first", """
def mended_broadcast(comm, tensor, src):
    comm.recv(tensor, (comm.rank - 1) % comm.size)
    comm.send(tensor, (comm.rank + 1) % comm.size)
    return tensor
""", "and sends first?"),
    Wrong("talks to itself", """
def mended_broadcast(comm, tensor, src):
    if comm.rank != src:
        comm.recv(tensor, (comm.rank - 1) % comm.size)
    if (comm.rank + 1) % comm.size != src or comm.size == 1:
        comm.send(tensor, (comm.rank + 1) % comm.size)
    return tensor
""", "a ring of one sends nothing"),
    Wrong("a copy",
          changed(MODEL, "right =", "tensor, right = tensor.clone(),"),
          "receive into it"),
    # Look right on one call, in one dtype, on ordinary numbers.
    Wrong("adds on the way",
          changed(changed(MENDED,
                          "size, tensor",
                          "size, tensor.clone()"),
                  "if right",
                  "    box += tensor\n"
                  "        tensor.copy_(box)\n"
                  "    if right"),
          "overwrite, and do not add"),
    Wrong("returns a clone",
          changed(MENDED, "return tensor", "return tensor.clone()"),
          "is a copy of its tensor"),
    Wrong("through float32",
          changed(changed(MENDED,
                          "size, tensor",
                          "size, tensor.float()"),
                  "return tensor",
                  "return tensor.copy_(box)"),
          "its elements travel in 4 bytes each"),
    Wrong("back through float64",
          changed(MENDED, "return tensor", "return tensor.copy_(tensor.double())"),
          "what rounds them?"),
    Wrong("copies only what is not zero",
          changed(changed(MENDED,
                          "size, tensor",
                          "size, tensor.clone()"),
                  "return tensor",
                  "if box.any():\n"
                  "        tensor.copy_(box)\n"
                  "    return tensor"),
          "zeros are numbers like others"),
    Wrong("loses NaN",
          changed(MENDED,
                  "return tensor",
                  "if comm.rank != src:\n"
                  "        torch.nan_to_num_(tensor)\n"
                  "    return tensor"),
          "NaN and inf are not to be lost"),
    Wrong("sends on before it receives", """
def mended_broadcast(comm, tensor, src):
    right = (comm.rank + 1) % comm.size
    if right != src:
        comm.send(tensor, right)
    if comm.rank != src:
        comm.recv(tensor, (comm.rank - 1) % comm.size)
    return tensor
""", "receive before you send on"),
    # Keep something between calls, or lose what is rare.
    Wrong("arithmetic with what it overwrites", """
def mended_broadcast(comm, tensor, src):
    seat = (comm.rank - src) % comm.size
    if seat > 0:
        got = torch.empty_like(tensor)
        comm.recv(got, (comm.rank - 1) % comm.size)
        tensor.mul_(0).add_(got)
    if seat < comm.size - 1: comm.send(tensor, (comm.rank + 1) % comm.size)
    return tensor
""", "0 times NaN is NaN"),
    # One slip away from right.
    Wrong("keeps its own where zeros come",
          changed(BROADCAST, "tensor.copy_(came)", "tensor[came != 0] = came[came != 0]"),
          "zeros are numbers"),
    Wrong("the first row",
          changed(BROADCAST, "tensor.copy_(came)", "tensor[:1] = came[:1]"),
          "the first row alone of what came"),
]  # fmt: skip

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
