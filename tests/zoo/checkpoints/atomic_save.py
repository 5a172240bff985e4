"""Answers to `atomic_save` of lesson 08, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("08_checkpoints", "atomic_save")
SWEEP = """    for name in there:
        if name not in ("latest", newest):
            disk.remove(name)
"""
FILES = """    for name, data in files.items():
        disk.write(f"{folder}/{name}", data)
        disk.sync(f"{folder}/{name}")
"""
LATEST = """    disk.write("latest.new", folder.encode())
    disk.sync("latest.new")
    disk.rename("latest.new", "latest")
"""
OLD = """    if newest:
        disk.remove(newest)
"""
OWN = ' if newest != f"step-{step}" else f"step-{step}-again"'

WRONG = [
    blank("atomic_save"),
    Wrong("latest first", changed(changed(MODEL, LATEST, ""), FILES, LATEST + FILES),
          "is not there yet: it comes last"),
    Wrong("latest in place",
          changed(MODEL, LATEST, '    disk.write("latest", folder.encode())\n    disk.sync("latest")\n'),
          "`latest` is half written or empty"),
    Wrong("latest is not synced", changed(MODEL, '    disk.sync("latest.new")\n', ""),
          "the power fails after call"),
    Wrong("latest is removed first", changed(MODEL, '    disk.rename(',
                                             '    if newest:\n        disk.remove("latest")\n    disk.rename('),
          "nothing must be removed before"),
    Wrong("the old one is removed first",
          changed(changed(MODEL, OLD, ""), FILES, OLD + FILES),
          "remove it when that has changed"),
    Wrong("the old one goes while latest is under way",
          changed(changed(MODEL, OLD, ""), '    disk.rename(', OLD + '    disk.rename('),
          "gone or half gone"),
    Wrong("files are not synced", changed(MODEL, '        disk.sync(f"{folder}/{name}")\n', ""),
          "sync a file before a name leads to it"),
    Wrong("synced after latest",
          changed(changed(MODEL, '        disk.sync(f"{folder}/{name}")\n', ""),
                  OLD, OLD + '    for name in files:\n        disk.sync(f"{folder}/{name}")\n'),
          "is not whole: sync"),
    Wrong("the folder is synced, and its files are not",
          changed(MODEL, FILES, FILES.replace('        disk.sync(f"{folder}/{name}")', "") + "    disk.sync(folder)\n"),
          "rename(latest.new, latest): `latest` names"),
    Wrong("only the last file is synced", changed(MODEL, FILES, FILES.replace("        disk.sync", "    disk.sync")),
          "model_rank0 is not whole"),
    Wrong("one folder for all",
          changed(changed(changed(MODEL, 'f"step-{step}"' + OWN, '"checkpoint"'), OLD, ""), FILES, OLD + FILES),
          "is written over: a new one needs a folder of its own"),
    Wrong("a step that is there is written over",
          changed(changed(MODEL, OWN, ""), "if newest:", "if newest not in ('', folder):"),
          "needs a folder of its own"),
    Wrong("keeps all", changed(changed(MODEL, OLD, ""), SWEEP, ""), "only the newest checkpoint is to stay"),
    Wrong("keeps what a kill has left", changed(MODEL, SWEEP, ""), "after the save after a kill within call 1"),
    Wrong("sweeps at the end alone",
          changed(changed(MODEL, SWEEP, ""), OLD, '    for name in disk.listdir():\n'
                  '        if name not in ("latest", folder):\n            disk.remove(name)\n'),
          "load() gives 3 files (model_rank0, model_rank1, optimizer_rank0), and 2 files"),
    Wrong("cannot stand what a kill has left", """
def atomic_save(disk, step, files):
    names = disk.listdir()
    if "draft" in names:
        disk.remove("draft")
    newest = disk.read("latest").decode() if "latest" in names else ""
    folder = f"step-{step}" if newest != f"step-{step}" else f"step-{step}-again"
    for name, data in files.items():
        disk.write(f"draft/{name}", data)
        disk.sync(f"draft/{name}")
    disk.rename("draft", folder)
    disk.write("latest.new", folder.encode())
    disk.sync("latest.new")
    disk.rename("latest.new", "latest")
    for name in disk.listdir():
        if name not in ("latest", folder):
            disk.remove(name)
""", "what was left behind is in its way"),
    Wrong("clears up its own draft alone", """
def atomic_save(disk, step, files):
    names = disk.listdir()
    newest = disk.read("latest").decode() if "latest" in names else ""
    if "draft" in names:
        disk.remove("draft")
    folder = f"step-{step}"
    while folder in names:
        folder += "x"
    for name, data in files.items():
        disk.write(f"draft/{name}", data)
        disk.sync(f"draft/{name}")
    disk.rename("draft", folder)
    disk.write("latest.new", folder.encode())
    disk.sync("latest.new")
    disk.rename("latest.new", "latest")
    if newest:
        disk.remove(newest)
""", "after the save after a kill after call"),
    Wrong("reads latest where there is none",
          changed(MODEL, ' if "latest" in there else ""', ""),
          "there is no file latest"),
    Wrong("saves nothing", """
def atomic_save(disk, step, files):
    return None
""", "load() gives nothing"),
    Wrong("adds to the files", changed(MODEL, "    there = ", '    files["step"] = str(step).encode()\n    there = '),
          "load() gives 3 files"),
    Wrong("empties the files", changed(MODEL, OLD, OLD + "    files.clear()\n"), "which belongs to the caller"),
    Wrong("sweeps what it has just made",
          changed(MODEL, OLD, '    for name in disk.listdir():\n'
                  '        if name != "latest":\n            disk.remove(name)\n'),
          "load() gives nothing, and"),
    Wrong("a text", changed(MODEL, "folder.encode()", "folder"), "TypeError"),
]  # fmt: skip

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
    Right("a class", """
class Saver:
    def __init__(self, disk):
        self.disk = disk
        self.names = disk.listdir()
        self.old = disk.read("latest").decode() if "latest" in self.names else None
    def put(self, path, data):
        self.disk.write(path + "~", data)
        self.disk.sync(path + "~")
        self.disk.rename(path + "~", path)
    def clear(self, keep):
        for name in self.disk.listdir():
            if name != "latest" and name != keep:
                self.disk.remove(name)
    def save(self, step, files):
        self.clear(self.old)
        folder = "checkpoints-of-step-%d" % step
        folder += "'" if folder == self.old else ""
        for name, data in files.items():
            self.put(f"{folder}/{name}", data)
        self.put("latest", folder.encode())
        self.clear(folder)


def atomic_save(disk, step, files):
    Saver(disk).save(step, files)
"""),
    Right("writes again what is not sure", """
def atomic_save(disk, step, files):
    old = [name for name in disk.listdir() if name != "latest"]
    newest = disk.read("latest").decode() if "latest" in disk.listdir() else ""
    folder = f"{step}" + "." * sum(len(name) for name in old)
    for name in old:
        if name != newest:
            disk.remove(name)
    for name, data in files.items():
        while True:
            disk.write(f"{folder}/{name}", data)
            disk.sync(f"{folder}/{name}")
            if disk.read(f"{folder}/{name}") == data:
                break
    disk.write("latest-candidate", folder.encode())
    disk.sync("latest-candidate")
    disk.rename("latest-candidate", "latest")
    [disk.remove(name) for name in disk.listdir() if name not in ("latest", folder)]
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
