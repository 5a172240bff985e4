"""Wrong answers to the exercise of lesson 01 that mends a broadcast."""

from zoo.wrong import Wrong, blank

ZOO = [
    blank("mended_broadcast"),
    Wrong("does not wait", "mended_broadcast", '''
def mended_broadcast(comm, tensor, src):
    if comm.rank != src:
        comm.recv(tensor, (comm.rank - 1) % comm.size)
    if (comm.rank + 1) % comm.size != src:
        comm.isend(tensor, (comm.rank + 1) % comm.size)
    return tensor
''', "waited for what it is sending"),
    Wrong("element by element", "mended_broadcast", '''
def mended_broadcast(comm, tensor, src):
    for element in tensor.split(1):
        if comm.rank != src:
            comm.recv(element, (comm.rank - 1) % comm.size)
        if (comm.rank + 1) % comm.size != src:
            comm.send(element, (comm.rank + 1) % comm.size)
    return tensor
''', "messages: at most one is asked for"),
    Wrong("source is 0", "mended_broadcast", '''
def mended_broadcast(comm, tensor, src):
    if comm.rank:
        comm.recv(tensor, comm.rank - 1)
    if comm.rank + 1 < comm.size:
        comm.send(tensor, comm.rank + 1)
    return tensor
''', "rank 0's tensor, whatever src is"),
    Wrong("still broken", "mended_broadcast", '''
def mended_broadcast(comm, tensor, src):
    if comm.rank:
        comm.recv(tensor, (comm.rank - 1) % comm.size)
    comm.send(tensor, (comm.rank + 1) % comm.size)
    return tensor
''', "from rank 0: deadlock"),
    Wrong("half mended: the source does not wait", "mended_broadcast", '''
def mended_broadcast(comm, tensor, src):
    if comm.rank != src:
        comm.recv(tensor, (comm.rank - 1) % comm.size)
    comm.send(tensor, (comm.rank + 1) % comm.size)
    return tensor
''', "sends to a rank that has already finished: who should not send?"),
    Wrong("half mended: nobody sends back", "mended_broadcast", '''
def mended_broadcast(comm, tensor, src):
    if comm.rank:
        comm.recv(tensor, (comm.rank - 1) % comm.size)
    if (comm.rank + 1) % comm.size != src:
        comm.send(tensor, (comm.rank + 1) % comm.size)
    return tensor
''', "receive from a rank that has already finished: who has nothing to receive?"),
    Wrong("everybody receives first", "mended_broadcast", '''
def mended_broadcast(comm, tensor, src):
    comm.recv(tensor, (comm.rank - 1) % comm.size)
    comm.send(tensor, (comm.rank + 1) % comm.size)
    return tensor
''', "and sends first?"),
    Wrong("talks to itself", "mended_broadcast", '''
def mended_broadcast(comm, tensor, src):
    if comm.rank != src:
        comm.recv(tensor, (comm.rank - 1) % comm.size)
    if (comm.rank + 1) % comm.size != src or comm.size == 1:
        comm.send(tensor, (comm.rank + 1) % comm.size)
    return tensor
''', "a ring of one sends nothing"),
    Wrong("a copy", "mended_broadcast", '''
def mended_broadcast(comm, tensor, src):
    tensor, right = tensor.clone(), (comm.rank + 1) % comm.size
    if comm.rank != src:
        comm.recv(tensor, (comm.rank - 1) % comm.size)
    if right != src:
        comm.send(tensor, right)
    return tensor
''', "receive into it"),
]  # fmt: skip
