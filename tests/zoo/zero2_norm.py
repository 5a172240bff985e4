"""Wrong answers to the exercise of lesson 04 on clipping."""

from zoo.wrong import Wrong, changed

CLIP = """
def clip_(comm, shards, used, limit, norm_type):
    gradients = [shard[:numel] for shard, numel in zip(shards, used, strict=True)]
    sizes = torch.cat(gradients).double().abs()
    if norm_type == torch.inf:
        own = sizes.max() if len(sizes) else sizes.new_zeros(())
        norm = comm.all_gather(own.view(1)).max()
    else:
        own = sizes.pow(norm_type).sum()
        norm = comm.all_gather(own.view(1)).sum() ** (1 / norm_type)
    if limit < norm < torch.inf:
        for gradient in gradients:
            gradient.mul_(limit / norm)
    return norm.item()
"""
SUM = "comm.all_gather(own.view(1)).sum() ** (1 / norm_type)"

ZOO = [
    Wrong("blank", "clip_", "def clip_(comm, shards, used, limit, norm_type):\n    raise NotImplementedError()",
          "not written yet"),
    Wrong("own norm", "clip_",
          changed(CLIP, SUM, "own ** (1 / norm_type)").replace("comm.all_gather(own.view(1)).max()", "own"),
          "the norm of its own shards"),
    Wrong("counts padding", "clip_", changed(CLIP, "shard[:numel] for", "shard for"), "Its padding counted"),
    Wrong("adds up norms", "clip_", changed(CLIP, SUM, "comm.all_gather((own ** (1 / norm_type)).view(1)).sum()"),
          "You added norms"),
    Wrong("no root", "clip_", changed(CLIP, SUM, "comm.all_gather(own.view(1)).sum()"), "The root is missing"),
    Wrong("a mean", "clip_", changed(CLIP, ".sum() ** (1", ".mean() ** (1"), "a mean over the ranks"),
    Wrong("always 2", "clip_", changed(CLIP, "    gradients =", "    norm_type = 2\n    gradients ="),
          "whatever norm_type is"),
    Wrong("single precision", "clip_", changed(CLIP, ".double()", ""), "That is not float64"),
    Wrong("Python's max", "clip_", changed(CLIP, "comm.all_gather(own.view(1)).max()",
                                           "torch.tensor(max(comm.all_gather(own.view(1)).tolist()))"),
          "look for it yourself"),
    Wrong("maximum of nothing", "clip_", changed(CLIP, "sizes.max() if len(sizes) else sizes.new_zeros(())",
                                                 "sizes.max()"),
          "numel() == 0"),
    Wrong("scales up", "clip_", changed(CLIP, "if limit < norm < torch.inf", "if norm < torch.inf"),
          "no reason to scale up"),
    Wrong("not in place", "clip_", changed(CLIP, "gradient.mul_(limit / norm)", "gradient = gradient * limit / norm"),
          "a new tensor stays with you"),
    Wrong("a factor of one's own", "clip_",
          changed(CLIP, "gradient.mul_(limit / norm)",
                  "gradient.mul_(limit / own_norm)")
          .replace("        for gradient in gradients:",
                   "        own_norm = torch.linalg.vector_norm(sizes, norm_type) if len(sizes) else 1\n"
                   "        for gradient in gradients:"),
          "scaled by their own norm"),
    Wrong("scales twice", "clip_", changed(CLIP, "mul_(limit / norm)", "mul_((limit / norm) ** 2)"),
          "scaled twice over"),
    Wrong("a factor for each shard", "clip_",
          changed(CLIP, "gradient.mul_(limit / norm)",
                  "gradient.mul_(limit / max(gradient.norm(norm_type), 1) if gradient.numel() else 1)"),
          "and limit / norm is"),
    Wrong("scales by inf", "clip_", changed(CLIP, "if limit < norm < torch.inf", "if limit < norm"),
          "the step will be skipped"),
    Wrong("gathers everything", "clip_", '''
def clip_(comm, shards, used, limit, norm_type):
    gradients = [shard[:numel] for shard, numel in zip(shards, used, strict=True)]
    room = torch.zeros(8192, dtype=torch.float64)
    mine = torch.cat(gradients).double()
    room[: len(mine)] = mine
    norm = torch.linalg.vector_norm(comm.all_gather(room), norm_type)
    if limit < norm < torch.inf:
        for gradient in gradients:
            gradient.mul_(limit / norm)
    return norm.item()
''', "one number of each rank is enough"),
    Wrong("a call for each rank", "clip_",
          changed(CLIP, SUM, "torch.stack([comm.broadcast(own.clone(), rank) for rank in range(comm.size)]).sum()"
                  " ** (1 / norm_type)"),
          "into one tensor"),
    Wrong("a tensor", "clip_", changed(CLIP, "return norm.item()", "return norm"), "a float is due"),
    Wrong("if rank", "clip_",
          changed(CLIP, "    if limit < norm", "    if comm.rank == 0 and limit < norm"), "the gradients of rank 1"),
]  # fmt: skip
