"""Answers to `MendedRun` of lesson 08, wrong and right."""

from zoo.answers import Right

RIGHT = [
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
