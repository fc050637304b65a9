"""`paceline check`: whether the installed SGLang has everything that the plugin hooks; in a process of its own."""

import sys

from ...buffer.errors import CaptureUnavailable
from ..hook_targets import missing_targets
from ..supported_release import check_release


def main() -> int:
    """Exit code 1, and the reason on stderr, when capture would be off; imports SGLang."""
    try:
        found = check_release()
    except CaptureUnavailable as fault:
        sys.stderr.write(f"paceline: capture would be off: {fault}\n")
        return 1
    missing = missing_targets()
    for target, why in missing.items():
        sys.stderr.write(f"paceline: capture would be off: SGLang {found} has no {target}: {why}\n")
    if not missing:
        sys.stdout.write(f"SGLang {found}: every hook target is there\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
