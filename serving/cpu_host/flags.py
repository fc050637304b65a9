"""Reading a command line that belongs to SGLang, without owning its parser."""

from collections.abc import Sequence


def names_given(args: Sequence[str]) -> frozenset[str]:
    """Every `--name` on the command line, whether spelled `--name value`, `--name=value` or alone."""
    return frozenset(arg.partition("=")[0] for arg in args if arg.startswith("--"))


def value_of(args: Sequence[str], *names: str) -> str | None:
    """The value of a flag under any of its `names`; the last one counts, as in argparse. None when absent or bare."""
    found: str | None = None
    for arg, following in zip(args, [*args[1:], ""], strict=True):
        name, equals, value = arg.partition("=")
        if name in names:
            found = value if equals else following
    return found or None
