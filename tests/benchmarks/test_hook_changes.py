"""What changed between two releases in the hook targets, on two wheels made for it."""

from zipfile import ZipFile

from paceline.benchmarks.matrix import hook_changes
from paceline.benchmarks.release import pinned

OLD = """
class Worker:
    def draft(self, batch: list) -> int:
        return len(batch)  # a comment

    async def verify(self, batch):
        total = 0
        return total

def gone(): ...
"""
NEW = """
class Worker:
    def draft(self, batch: tuple[int, ...], *, quick: bool = False) -> int:
        return len(batch)

    async def verify(self, batch):
        total = 1
        return total

    def gone(self): ...

def came(a=1): ...
"""


def wheel(path, code, needs):
    with ZipFile(path, "w") as file:
        file.writestr("engine/worker/__init__.py", code)
        file.writestr("engine-1.dist-info/METADATA", "".join(f"Requires-Dist: {each}\n" for each in needs))
    return ZipFile(path)


def test_a_target_that_is_gone_or_has_other_arguments_or_another_body_is_named(tmp_path, monkeypatch):
    names = ("Worker.draft", "Worker.verify", "gone", "came", "neither", "Worker.neither")
    monkeypatch.setattr(hook_changes, "TARGETS", tuple(f"engine.worker.{name}" for name in names))
    needs = ["torch==2.13.0", "numpy", 'pytest; extra == "dev"'], ["torch==2.14.1", "numpy"]
    with wheel(tmp_path / "old.whl", OLD, needs[0]) as old, wheel(tmp_path / "new.whl", NEW, needs[1]) as new:
        assert list(hook_changes.report(old, new)) == [
            "engine.worker.Worker.draft: was (self, batch)",
            "engine.worker.Worker.draft: is  (self, batch, *, quick=False)",
            "engine.worker.Worker.verify: body: 2 lines differ",
            "engine.worker.gone: gone",
            "engine.worker.came: new: (a=1)",
            "engine.worker.neither: in neither",
            "engine.worker.Worker.neither: in neither",
            "0 of 6 hook targets are the same",
            "needs no longer: torch==2.13.0",
            "needs: torch==2.14.1",
        ]
        assert list(hook_changes.report(old, old))[-1] == "3 of 6 hook targets are the same"


def test_requirements_get_the_versions_that_the_release_pins():
    known = "# What SGLang 9 pins.\n-r requirements.txt\nopenai==2.6.1\ntransformers==5.12.1\n"
    assert pinned(known, {"openai==2.8.0", "torch==2.14.1", "numpy", "uvicorn>=0.51"}) == (
        "# What SGLang 9 pins.\n-r requirements.txt\nopenai==2.8.0\ntransformers==5.12.1\n"
    )
