"""Answers to `hierarchical_all_reduce` of lesson 09, wrong and right."""

from zoo.answers import Right

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
