"""How the traces of a bench are served."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """A temperature and a draft length."""

    temperature: float
    steps: int  # draft length

    @property
    def name(self) -> str:
        """As in file names and tables."""
        return f"t{self.temperature:g}-k{self.steps}"

    @classmethod
    def named(cls, name: str) -> "Setting":
        """The setting called `name`; ValueError when it is no such name."""
        temperature, steps = name.removeprefix("t").split("-k")
        return cls(float(temperature), int(steps))


#: What record.py writes by default.
SETTINGS = tuple(Setting(temperature, steps) for temperature in (0.0, 0.7) for steps in (3, 5, 10))
