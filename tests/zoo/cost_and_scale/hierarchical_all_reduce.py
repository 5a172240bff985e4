"""Answers to `hierarchical_all_reduce` of lesson 09, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("09_cost_and_scale", "hierarchical_all_reduce")

WRONG = [
    blank("hierarchical_all_reduce"),
    Wrong("one ring over all",
          "def hierarchical_all_reduce(comm, tensor, node_size):\n    comm.all_reduce(tensor)",
          "cut the tensor inside the node first"),
    Wrong("its node alone",
          "def hierarchical_all_reduce(comm, tensor, node_size):\n"
          "    comm.split(comm.rank // node_size).all_reduce(tensor)",
          "the sum of its node alone"),
    Wrong("its seat alone",
          "def hierarchical_all_reduce(comm, tensor, node_size):\n"
          "    comm.split(comm.rank % node_size).all_reduce(tensor)",
          "the ranks with its seat alone"),
    Wrong("nobody goes across",
          changed(MODEL, "    seat.all_reduce(part)\n", ""),
          "who tells the other nodes"),
    Wrong("both groups are nodes, whole tensors", """
def hierarchical_all_reduce(comm, tensor, node_size):
    for _ in range(2):
        comm.split(comm.rank // node_size).all_reduce(tensor)
""", "its node's sum, several times"),
    Wrong("each rank brings its node's sum", """
def hierarchical_all_reduce(comm, tensor, node_size):
    comm.split(comm.rank // node_size).all_reduce(tensor)
    comm.all_reduce(tensor)
""", "each rank of a node brings the node's sum"),
    Wrong("nobody gathers", """
def hierarchical_all_reduce(comm, tensor, node_size):
    node, seat = comm.split(comm.rank // node_size), comm.split(comm.rank % node_size)
    flat = tensor.view(-1)
    part = node.reduce_scatter(flat, out=flat.tensor_split(node.size)[node.rank])
    seat.all_reduce(part)
""", "who hands the finished parts around"),
    Wrong("the mean",
          changed(MODEL, "    node.all_gather(part, out=flat)",
                  "    part.copy_(part / comm.size)\n    node.all_gather(part, out=flat)"),
          "the sum is asked for"),
    Wrong("a tensor of its own",
          changed(MODEL, "node.all_gather(part, out=flat)",
                  "return node.all_gather(part, flat.numel()).view(tensor.shape)"),
          "is the sum written into `tensor` itself"),
    Wrong("a copy of a matrix",
          changed(MODEL, "tensor.view(-1)", "tensor.flatten().clone()"),
          "its own numbers, as they were"),
    Wrong("whole tensors across", """
def hierarchical_all_reduce(comm, tensor, node_size):
    node, seat = comm.split(comm.rank // node_size), comm.split(comm.rank % node_size)
    node.all_reduce(tensor)
    seat.all_reduce(tensor)
""", "so that each of its ranks takes a part across"),
    Wrong("leaders talk", """
def hierarchical_all_reduce(comm, tensor, node_size):
    node, seat = comm.split(comm.rank // node_size), comm.split(comm.rank % node_size)
    node.all_reduce(tensor)
    if comm.rank % node_size == 0:
        seat.all_reduce(tensor)
    node.broadcast(tensor)
""", "cut the tensor inside"),
    Wrong("parts gathered across, then added", """
def hierarchical_all_reduce(comm, tensor, node_size):
    node, seat = comm.split(comm.rank // node_size), comm.split(comm.rank % node_size)
    flat = tensor.view(-1)
    part = node.reduce_scatter(flat)
    part = seat.all_gather(part).view(seat.size, -1).sum(0).to(part.dtype)
    node.all_gather(part, out=flat)
""", "is all-reduced among the ranks of one seat"),
    Wrong("all-reduces inside, gathers nothing",
          changed(MODEL, "part = node.reduce_scatter(flat)",
                  "part = node.all_reduce(flat).tensor_split(node.size)[node.rank]"),
          "inside, a reduce-scatter before"),
    Wrong("a padded chunk is forgotten",
          changed(MODEL, "node.all_gather(part, out=flat)", "flat.copy_(node.all_gather(part))"),
          "the ranks part ways"),
    Wrong("in float32", """
def hierarchical_all_reduce(comm, tensor, node_size):
    node, seat = comm.split(comm.rank // node_size), comm.split(comm.rank % node_size)
    flat = tensor.reshape(-1).float()
    part = node.reduce_scatter(flat)
    seat.all_reduce(part)
    tensor.copy_(node.all_gather(part, flat.numel()).view(tensor.shape))
""", "to single precision only"),
]  # fmt: skip

RIGHT = [
    Right("parts in place", """
def hierarchical_all_reduce(comm, tensor, node_size):
    flat = tensor.view(-1)
    node = comm.split(comm.rank // node_size)
    mine = flat.tensor_split(node.size)[node.rank]
    node.reduce_scatter(flat, out=mine)
    comm.split(comm.rank % node_size).all_reduce(mine)
    node.all_gather(mine, out=flat)
"""),
    Right("subgroups, by lists of ranks", """
def hierarchical_all_reduce(comm, tensor, node_size):
    groups = comm.size // node_size
    for first in range(0, comm.size, node_size):
        group = comm.subgroup(list(range(first, first + node_size)))
        node = group if group is not None else (node if first > comm.rank else None)
    for at in range(node_size):
        group = comm.subgroup(list(range(at, comm.size, node_size)))
        if group is not None:
            seat = group
    part = node.reduce_scatter(tensor.flatten())
    part = seat.all_reduce(part)
    tensor.copy_(node.all_gather(part, tensor.numel()).view_as(tensor))
"""),
    Right("four halves", """
def hierarchical_all_reduce(comm, tensor, node_size):
    node = comm.split(color=comm.rank // node_size, name="node")
    seat = comm.split(color=comm.rank % node_size, name="seat")
    flat = tensor.view(-1)
    part = node.reduce_scatter(flat)
    piece = seat.reduce_scatter(part)
    part = seat.all_gather(piece, part.numel())
    flat.copy_(node.all_gather(part, flat.numel()))
    return tensor
"""),
    Right("padded to equal parts", """
import torch.nn.functional as F


def hierarchical_all_reduce(comm, tensor, node_size):
    node, seat = comm.split(comm.rank // node_size), comm.split(comm.rank % node_size)
    flat = tensor.flatten()
    padded = torch.cat([flat, flat.new_zeros(-len(flat) % comm.size)])
    part = node.reduce_scatter(padded)
    piece = seat.reduce_scatter(part)
    whole = node.all_gather(seat.all_gather(piece))
    tensor.copy_(whole[: len(flat)].view(tensor.shape))
"""),
    Right("groups of a group, and asynchronous", """
def hierarchical_all_reduce(comm, tensor, node_size):
    machine, place = divmod(comm.rank, node_size)
    everybody = comm.split(0)
    node, seat = everybody.split(machine), everybody.split(place, key=machine)
    flat = tensor.view(-1)
    part = node.reduce_scatter_async(flat).wait()
    seat.all_reduce_async(part).wait()
    node.all_gather_async(part, out=flat).wait()
"""),
    Right("seats from the other end", """
def hierarchical_all_reduce(comm, tensor, node_size):
    node = comm.split(comm.rank // node_size, key=-comm.rank)
    seat = comm.split(node.rank)
    flat = tensor.view(-1)
    part = node.reduce_scatter(flat)
    if seat.size > 1:
        seat.all_reduce(part)
    node.all_gather(part, out=flat)
"""),
]  # fmt: skip
