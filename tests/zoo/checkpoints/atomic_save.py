"""Answers to `atomic_save` of lesson 08, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("a draft that is renamed", """
def atomic_save(disk, step, files):
    def current():
        try:
            return disk.read("latest").decode()
        except FileNotFoundError:
            return None
    def sweep(*keep):
        for name in disk.listdir():
            if name not in keep:
                disk.remove(name)
    sweep("latest", current())
    for name, data in files.items():
        disk.write("draft/" + name, data)
        disk.sync("draft/" + name)
    count = int(current().split(".")[1]) + 1 if current() else 0
    folder = f"step-{step:08d}.{count}"
    disk.rename("draft", folder)
    disk.write("latest.part", folder.encode("ascii"))
    disk.sync("latest.part")
    disk.rename("latest.part", "latest")
    sweep("latest", folder)
"""),
    Right("two places in turn", """
def atomic_save(disk, step, files):
    place = b"b"
    if "latest" in disk.listdir():
        place = {b"a": b"b", b"b": b"a"}[disk.read("latest")]
    text = place.decode()
    if text in disk.listdir():
        disk.remove(text)
    for name in sorted(files):
        disk.write(text + "/" + name, files[name])
    for name in sorted(files):
        disk.sync(text + "/" + name)
    disk.write("next", place)
    disk.sync("next")
    disk.rename("next", "latest")
    for name in disk.listdir():
        if name not in ("latest", text):
            disk.remove(name)
"""),
    Right("a folder that nobody has", """
import itertools
def atomic_save(disk, step, files):
    names = set(disk.listdir())
    folder = next(f"{step}-{k}" for k in itertools.count() if f"{step}-{k}" not in names)
    for name, data in reversed(list(files.items())):
        path = f"{folder}/{name}"
        disk.write(path, bytearray(data))
        disk.sync(path)
    disk.sync(folder)
    if "tmp" in names:
        disk.remove("tmp")
    disk.write("tmp", folder.encode())
    disk.sync("tmp")
    disk.rename("tmp", "latest")
    for name in names - {"latest", "tmp"}:
        disk.remove(name)
"""),
    Right("a folder in a folder", """
def atomic_save(disk, step, files):
    old = disk.read("latest").decode() if "latest" in disk.listdir() else None
    for n in disk.listdir():
        if n not in ("latest", "saves"):
            disk.remove(n)
    for n in disk.listdir("saves"):
        if f"saves/{n}" != old:
            disk.remove(f"saves/{n}")
    new = f"saves/{step}"
    if new == old:
        new += "x"
    for n, d in files.items():
        disk.write(f"{new}/{n}", d)
        disk.sync(f"{new}/{n}")
    disk.write("t", new.encode())
    disk.sync("t")
    disk.rename("t", "latest")
    if old:
        disk.remove(old)
"""),
]  # fmt: skip
