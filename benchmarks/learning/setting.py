"""How the traces of a bench are served."""

from dataclasses import dataclass

_REJECTION = "rejection"


@dataclass(frozen=True, slots=True)
class Setting:
    """A temperature, a draft length, and a verdict rule. ValueError for rejection sampling of greedy requests."""

    temperature: float
    steps: int  # draft length
    rejection: bool = False  # drafts are drawn and verified by rejection sampling; above temperature 0 alone

    def __post_init__(self) -> None:
        if self.rejection and not self.temperature:
            raise ValueError("rejection sampling: got temperature 0, expected one above it")

    @property
    def name(self) -> str:
        """As in file names and tables."""
        return f"{self.traffic}-k{self.steps}"

    @property
    def traffic(self) -> str:
        """All but the draft length; learning rates are tuned for it."""
        return f"t{self.temperature:g}{f'-{_REJECTION}' * self.rejection}"

    @classmethod
    def named(cls, name: str) -> "Setting":
        """The setting called `name`; ValueError when it is no such name."""
        traffic, steps = name.removeprefix("t").split("-k")
        temperature, _, rule = traffic.partition("-")
        if rule not in {"", _REJECTION}:
            raise ValueError(f"verdict rule: got {rule!r}, expected {_REJECTION!r} or none")
        return cls(float(temperature), int(steps), rejection=bool(rule))


#: What record.py writes by default.
SETTINGS = tuple(Setting(temperature, steps) for temperature in (0.0, 0.7) for steps in (3, 5, 10))
