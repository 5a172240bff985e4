"""Answers to `sub_groups` of lesson 07, wrong and right."""

from zoo.answers import Right, changed

ROUNDS_WITH_BITS = """
def sub_groups(segments, limit, align, width):
    limit = max(limit, align)
    groups, room = [], 0
    for start, stop in segments:
        while start < stop:
            take = min(stop - start, room & -align)
            if take == 0:
                groups.append([])
                room = limit
                continue
            groups[-1].append((start, start + take))
            start += take
            room -= take
    found, offset = [], 0
    for parts in groups:
        found.append((offset, parts))
        offset = -(-(offset + width * sum(b - a for a, b in parts)) // 4096) * 4096
    return found
"""

RIGHT = [
    Right("straight",
          changed(changed(ROUNDS_WITH_BITS,
                          "& -align",
                          "// align * align"),
                  "offset = -(-(offset + width * sum(b - a for a, b in parts))",
                  "end = offset + width * sum(b - a for a, b in parts)\n"
                  "        offset = -(-end")),
    Right("recursion", """
def sub_groups(segments, limit, align, width):
    limit = max(limit, align)
    def fill(todo, room):
        if not todo:
            return [], []
        (start, stop), rest = todo[0], todo[1:]
        if start == stop:
            return fill(rest, room)
        take = min(stop - start, room - room % align)
        if take == 0:
            return [], todo
        parts, left = fill([(start + take, stop)] + rest, room - take)
        return [(start, start + take)] + parts, left
    todo, groups, offset = list(segments), [], 0
    while True:
        parts, todo = fill(todo, limit)
        if not parts:
            return groups
        groups.append((offset, parts))
        nbytes = sum(stop - start for start, stop in parts) * width
        offset += (nbytes + 4095) // 4096 * 4096
"""),
    Right("a class", """
class Packer:
    def __init__(self, limit, align):
        self.limit, self.align = max(limit, align), align
        self.groups = []
        self.used = self.limit
    def put(self, start, stop):
        while start < stop:
            room = (self.limit - self.used) // self.align * self.align
            if not room:
                self.groups.append([])
                self.used = 0
                room = self.limit // self.align * self.align
            end = min(stop, start + room)
            self.groups[-1].append((start, end))
            self.used += end - start
            start = end
def sub_groups(segments, limit, align, width):
    packer = Packer(limit, align)
    for segment in segments:
        packer.put(*segment)
    offsets = [0]
    for parts in packer.groups:
        length = width * sum(stop - start for start, stop in parts)
        offsets.append(offsets[-1] + length + -length % 4096)
    return list(zip(offsets, packer.groups))
"""),
    Right("a generator, lists for parts, math.ceil", """
import math
def cut(segments, limit, align):
    parts, held = [], 0
    for start, stop in segments:
        at = start
        while at != stop:
            room = ((limit - held) // align) * align
            if room == 0:
                yield parts
                parts, held = [], 0
            else:
                upto = min(stop, at + room)
                parts.append((at, upto))
                held, at = held + upto - at, upto
    if parts:
        yield parts
def sub_groups(segments, limit, align, width):
    result, at = [], 0
    for parts in cut(segments, max(limit, align), align):
        result.append((at, list(parts)))
        at = math.ceil((at + width * sum(stop - start for start, stop in parts)) / 4096) * 4096
    return result
"""),
    Right("a deque", """
from collections import deque
def sub_groups(segments, limit, align, width):
    queue = deque((a, b) for a, b in segments if b > a)
    out, offset = [], 0
    while queue:
        parts, room = [], align if limit < align else limit
        while queue and room >= align:
            a, b = queue.popleft()
            c = min(b, a + room - room % align)
            parts.append((a, c))
            if c < b:
                queue.appendleft((c, b))
            room -= c - a
        out.append((offset, parts))
        offset += sum(b - a for a, b in parts) * width
        while offset % 4096:
            offset += 1
    return out
"""),
    Right("bisect over cuts, tuples", """
def sub_groups(segments, limit, align, width):
    whole = limit if limit >= align else align
    result, group, filled = [], [], 0
    def close():
        at = result[-1][0] + pages(result[-1][1]) if result else 0
        result.append((at, tuple(group)))
        group.clear()
    def pages(parts):
        return -(-sum(b - a for a, b in parts) * width // 4096) * 4096
    for a, b in segments:
        while b > a:
            if (whole - filled) < align:
                close()
                filled = 0
            c = min(b, a + (whole - filled) // align * align)
            group.append((a, c))
            filled, a = filled + c - a, c
    if group:
        close()
    return result
"""),
    Right("an iterator of (segment, room) with lists", """
def sub_groups(segments, limit, align, width):
    rest = [[start, stop] for start, stop in segments if stop != start][::-1]
    sys, offset = [], 0
    while rest:
        room, parts = max(limit, align), []
        while rest and room // align:
            start, stop = rest.pop()
            end = start + min(stop - start, align * (room // align))
            parts += [[start, end]]
            room -= end - start
            if end != stop:
                rest += [[end, stop]]
        sys += [[offset, parts]]
        nbytes = width * sum(stop - start for start, stop in parts)
        offset += nbytes if nbytes % 4096 == 0 else (nbytes // 4096 + 1) * 4096
    return sys
"""),
    # Careful with what is under way.
    Right("cuts first, offsets by accumulate", """
from itertools import accumulate
def sub_groups(segments, limit, align, width):
    limit = max(limit, align)
    groups, used = [], limit
    for start, stop in segments:
        while stop - start > 0:
            room = (limit - used) - (limit - used) % align
            if not room:
                groups.append([])
                used = 0
                continue
            end = min(start + room, stop)
            groups[-1].append((start, end))
            used += end - start
            start = end
    sizes = [sum(b - a for a, b in parts) * width for parts in groups]
    starts = accumulate((-(-size // 4096) * 4096 for size in sizes[:-1]), initial=0)
    return list(zip(starts, groups))
"""),
    # Have to hold at the edges.
    Right("generator, offsets beside it", """
def sub_groups(segments, limit, align, width):
    def packed():
        room, parts = max(limit, align), []
        for start, stop in segments:
            while start < stop:
                take = min(stop - start, room - room % align)
                if not take:
                    yield parts
                    room, parts = max(limit, align), []
                    continue
                parts.append((start, start + take))
                start, room = start + take, room - take
        if parts:
            yield parts
    result, offset = [], 0
    for parts in packed():
        result.append((offset, parts))
        offset += (sum(b - a for a, b in parts) * width + 4095) // 4096 * 4096
    return result
"""),
]  # fmt: skip
