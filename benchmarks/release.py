"""Tries a release of SGLang that is not supported yet: what changed, the tests of the hooks, the rows users start with.

    make try-release RELEASE=0.5.24            # python -m paceline.benchmarks.release 0.5.24

Leaves in the working tree what the release needs to be tried at all: its requirements, and its name in SUPPORTED.
"""

import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

from ..serving.supported_release import SUPPORTED
from .matrix.hook_changes import needs, report
from .measure.command_line import benchmark_parser

HOUSE = Path(__file__).parents[1]
WHEELS = HOUSE / "build/wheels"
HOST = HOUSE / "serving/cpu_host"
SUPPORT = HOUSE / "serving/supported_release.py"
TESTS = "tests/serving tests/e2e/test_capture.py tests/e2e/test_swap.py"
DOCTOR = "tests/e2e/test_refusals.py::test_the_doctor_says_of_the_real_sglang_what_will_happen"


def wheel(release: str) -> ZipFile:
    """SGLang's wheel, downloaded once."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(WHEELS)]
    subprocess.run([*pip, f"sglang=={release}"], check=True)
    return ZipFile(next(WHEELS.glob(f"sglang-{release}-*.whl")))


def pinned(text: str, required: set[str]) -> str:
    """Requirements of a release as another one's, with the versions that `required` pins."""
    pins = dict(each.split("==") for each in required if re.fullmatch(r"[\w.-]+==[\w.]+", each))
    lines = (line.partition("==") for line in text.splitlines())
    return "".join(f"{name}{sign}{pins.get(name, version) if sign else version}\n" for name, sign, version in lines)


def support(release: str, required: set[str]) -> None:
    """Let this tree start on a release: `make setup` wants its requirements, paceline its name."""
    file = HOST / f"requirements-{release}.txt"
    if not file.exists():
        known = (HOST / f"requirements-{SUPPORTED[0]}.txt").read_text(encoding="utf-8")
        file.write_text(pinned(known.replace(SUPPORTED[0], release), required), encoding="utf-8")
    if release not in SUPPORTED:
        text = SUPPORT.read_text(encoding="utf-8")
        SUPPORT.write_text(text.replace(f'"{SUPPORTED[-1]}")', f'"{SUPPORTED[-1]}", "{release}")'), encoding="utf-8")


def make(release: str, target: str, arguments: str = "") -> bool:
    """Run a target of the Makefile on a release; whether it did well."""
    command = ["make", "--no-print-directory", target, f"SGLANG={release}", f"ARGS={arguments}"]
    print("==", " ".join(command), flush=True)
    return not subprocess.run(command, check=False, cwd=HOUSE).returncode


def main() -> int:
    """Print what changed since the default release, and try it; 1 if anything failed."""
    parser = benchmark_parser("release", __doc__)
    parser.add_argument("release", help="as pip knows it: 0.5.24")
    release: str = parser.parse_args().release
    with wheel(SUPPORTED[0]) as old, wheel(release) as new:
        print(f"== from {SUPPORTED[0]} to {release}", *report(old, new), sep="\n", flush=True)
        support(release, needs(new))
    if not make(release, "setup"):
        return 1
    did_well = [make(release, "test", f"{TESTS} {DOCTOR}"), make(release, "compatibility-rows", '--only "start: "')]
    return 0 if all(did_well) else 1


if __name__ == "__main__":
    sys.exit(main())
