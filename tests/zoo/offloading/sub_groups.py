"""Answers to `sub_groups` of lesson 07, wrong and right."""

from zoo.answers import Right

RIGHT = [
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
]  # fmt: skip
