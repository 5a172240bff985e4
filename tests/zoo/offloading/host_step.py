"""Answers to `host_step` of lesson 07, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("a new shard of 16 bits", """
def host_step(comm, row, gradient, host, step):
    mean = comm.reduce_scatter(gradient, average=True)
    host["gradient"][...] = mean
    adamw(host, step)
    mean.copy_(host["main"])
    comm.all_gather(mean, out=row)
"""),
    Right("reduced into the row's own place", """
def host_step(comm, row, gradient, host, step):
    place = torch.tensor_split(row, comm.size)[comm.rank]
    comm.reduce_scatter(gradient, average=True, out=place)
    host["gradient"].copy_(place)
    adamw(host, step)
    place.copy_(host["main"])
    comm.all_gather(place, out=row)
"""),
    Right("narrow and set_ of data", """
def host_step(comm, row, gradient, host, step):
    handle = comm.reduce_scatter_async(gradient, average=True)
    arrived = host["gradient"]
    arrived.data.copy_(handle.wait())
    adamw(host, step)
    for rank, piece in enumerate(row.tensor_split(comm.size)):
        if rank == comm.rank:
            piece.data.copy_(host["main"])
            mine = piece
    comm.all_gather_async(mine, out=row).wait()
"""),
    Right("methods load and save", """
class Host:
    def __init__(self, comm, row, host):
        self.comm, self.row, self.host = comm, row, host
        self.own = row.tensor_split(comm.size)[comm.rank]
    def load(self, gradient):
        arrived = self.comm.reduce_scatter(gradient, average=True)
        self.host["gradient"].copy_(arrived, non_blocking=True)
    def save(self):
        self.own.copy_(self.host["main"], non_blocking=True)
        self.comm.all_gather(self.own, out=self.row)
def host_step(comm, row, gradient, host, step):
    it = Host(comm, row, host)
    it.load(gradient)
    adamw(host, step)
    it.save()
"""),
    Right("sum halved on the host by mul", """
def host_step(comm, row, gradient, host, step):
    host["gradient"].copy_(comm.reduce_scatter(gradient)).div_(comm.size)
    adamw(host, step)
    comm.all_gather(host["main"].to(row.dtype), numel=row.numel(), out=row)
"""),
]  # fmt: skip
