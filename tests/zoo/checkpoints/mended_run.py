"""Answers to `MendedRun` of lesson 08, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("08_checkpoints", "MendedRun")
SAVE, LOAD = "return deepcopy(vars(self))", "vars(self).update(deepcopy(saved))"


def without(name: str) -> str:
    """The model answer, but for one part of a run."""
    return changed(MODEL, LOAD, f"vars(self).update({{k: v for k, v in deepcopy(saved).items() if k != {name!r}}})")


WRONG = [
    blank("MendedRun", "class MendedRun(Run):\n    def save(self):\n    "),
    Wrong("in a hurry", """
class MendedRun(Run):
    def save(self):
        return {"params": self.params, "momentum": self.momentum, "steps": self.steps}
    def load(self, saved):
        self.params, self.momentum, self.steps = saved["params"], saved["momentum"], saved["steps"]
        self.main = self.params.float()
""", "what save() returned has changed as the run went on"),
    Wrong("no batches", without("batches"), "which data has the run had?"),
    Wrong("no scale", without("scale"), "what has the run found out?"),
    Wrong("no clean steps", without("clean"), "when does the scale double?"),
    Wrong("no steps", without("steps"), "what falls with them?"),
    Wrong("no momentum", without("momentum"), "the momentum is not that of the checkpoint"),
    Wrong("no parameters in fp16", without("params"), "`params` are not those of the checkpoint"),
    Wrong("no main parameters", without("main"), "`main` is not that of the checkpoint"),
    Wrong("main parameters from fp16",
          changed(MODEL, LOAD, LOAD + "\n        self.main = self.params.float()"),
          "which have lost its last bits"),
    Wrong("a momentum in fp16",
          changed(MODEL, LOAD, LOAD + "\n        self.momentum = self.momentum.half().float()"),
          "`momentum` has lost its last bits"),
    Wrong("steps for batches",
          changed(MODEL, LOAD, LOAD + "\n        self.batches = self.steps"),
          "comes next, and"),
    Wrong("save shares", changed(MODEL, SAVE, "return dict(vars(self))"),
          "`main` is that of a later step"),
    Wrong("load shares", changed(MODEL, LOAD, "vars(self).update(saved)"), "load() has to copy, too"),
    Wrong("the run's own dict", changed(changed(MODEL, SAVE, "return vars(self)"), LOAD, "vars(self).update(saved)"),
          "has changed as the run went on"),
    Wrong("gives a new run back",
          changed(MODEL, LOAD, "run = MendedRun(self.main, self.window)\n"
                  "        vars(run).update(deepcopy(saved))\n        return run"),
          "a new run that loads the checkpoint leaves"),
    Wrong("saving begins a new count", changed(MODEL, SAVE, "self.clean = 0\n        " + SAVE),
          "to save changes nothing"),
    Wrong("takes it out of what was saved",
          changed(MODEL, LOAD, "while saved:\n            setattr(self, *saved.popitem())"),
          "a second run that loads it"),
    Wrong("kept in the class",
          changed(changed(MODEL, SAVE, "Run.kept = vars(self)"), LOAD, "vars(self).update(deepcopy(Run.kept))"),
          "is that of a later step"),
    Wrong("a step of its own", changed(MODEL, "    def save", "    def update(self, gradient):\n"
                                       "        super().update(2 * gradient)\n    def save"),
          "leave what Run does as it is"),
    Wrong("the newest kept in the class", """
class MendedRun(Run):
    kept = {}
    def save(self):
        self.kept["newest"] = deepcopy(vars(self))
        return "newest"
    def load(self, saved):
        vars(self).update(deepcopy(self.kept[saved]))
""", "of a later step: what save() returned"),
    Wrong("gives the run back", """
class MendedRun(Run):
    def save(self):
        return deepcopy(vars(self))
    def load(self, saved):
        vars(self).update(deepcopy(saved))
        return self
""", "and returns nothing"),
]  # fmt: skip

RIGHT = [
    Right("name by name", """
class MendedRun(Run):
    def save(self):
        return {
            "main": self.main.clone(), "momentum": self.momentum.clone(), "scale": self.scale, "clean": self.clean,
            "steps": self.steps, "batches": self.batches,
        }
    def load(self, saved):
        self.main, self.momentum = saved["main"].clone(), saved["momentum"].clone()
        self.params = self.main.half()
        self.scale, self.clean = saved["scale"], saved["clean"]
        self.steps, self.batches = saved["steps"], saved["batches"]
"""),
    Right("in place", """
class MendedRun(Run):
    tensors, numbers = ("main", "params", "momentum"), ("scale", "clean", "steps", "batches")
    def save(self):
        return [getattr(self, n).clone() for n in self.tensors], [getattr(self, n) for n in self.numbers]
    def load(self, saved):
        for name, tensor in zip(self.tensors, saved[0]):
            getattr(self, name).copy_(tensor)
        for name, number in zip(self.numbers, saved[1]):
            setattr(self, name, number)
"""),
    Right("bytes", """
import pickle
class MendedRun(Run):
    def save(self):
        return pickle.dumps(self.__dict__)
    def load(self, saved):
        self.__dict__ = pickle.loads(saved)
"""),
    Right("torch's own bytes", """
import io
class MendedRun(Run):
    def save(self):
        file = io.BytesIO()
        torch.save(vars(self), file)
        return file.getvalue()
    def load(self, saved):
        self.__dict__.update(torch.load(io.BytesIO(saved)))
"""),
    Right("JSON", """
import json
class MendedRun(Run):
    def save(self):
        tensors = self.main.tolist(), self.momentum.tolist()
        return json.dumps([*tensors, int(self.scale), self.clean, self.steps, self.batches])
    def load(self, saved):
        main, momentum, self.scale, self.clean, self.steps, self.batches = json.loads(saved)
        self.main, self.momentum = torch.tensor(main), torch.tensor(momentum)
        self.params = self.main.half()
"""),
    Right("a run in a run", """
class MendedRun(Run):
    def save(self):
        other = MendedRun(self.main, self.window)
        other.load(self)
        return other
    def load(self, saved):
        for name, value in list(vars(saved).items()):
            setattr(self, name, value.clone() if torch.is_tensor(value) else value)
"""),
    Right("one tensor", """
class MendedRun(Run):
    def save(self):
        numbers = torch.tensor([self.scale, self.clean, self.steps, self.batches], dtype=torch.float64)
        return torch.cat([numbers, self.main.double(), self.momentum.double()])
    def load(self, saved):
        numbers, rest = saved[:4].tolist(), saved[4:].float()
        self.scale = numbers[0]
        self.clean, self.steps, self.batches = map(int, numbers[1:])
        self.main, self.momentum = (part.clone() for part in rest.chunk(2))
        self.params.copy_(self.main)
"""),
]  # fmt: skip
