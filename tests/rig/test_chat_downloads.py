"""The published packages themselves: their layout, how many prompts they have, and the gym's verifiers."""

import pytest
from paceline.rig.chat.logic import EACH, TASKS, easy_tasks, logic_tasks
from paceline.rig.chat.streams import STREAMS, chat_stream
from paceline.rig.wheels import REASONING_GYM, fetch

pytestmark = pytest.mark.installs


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory):
    return tmp_path_factory.mktemp("data")


@pytest.mark.parametrize(
    ("name", "prompts", "roles"),
    [
        ("code", 164, ("user",)),
        ("tools", 1058, ("system", "user")),
        ("talk", 80, ("user",)),
        ("logic", 1194, ("user",)),
        ("languages", 426, ("user",)),
    ],
)
def test_a_published_package_has_as_many_prompts_as_stated(data_dir, name: str, prompts: int, roles) -> None:
    stream = chat_stream(name, data_dir, prompts, seed=0)
    assert len(stream) == prompts == len({chat[-1]["content"] + chat[0]["content"] for chat in STREAMS[name](data_dir)})
    assert {tuple(message["role"] for message in chat) for chat in stream} == {roles}


def test_easy_tasks_are_the_gyms_too(data_dir) -> None:
    tasks = easy_tasks(fetch(REASONING_GYM, data_dir))
    assert len(tasks) == 147
    assert {(task.score(task.entry["answer"]), task.score("")) for task in tasks.values()} == {(1.0, 0.0)}


def test_the_gyms_verifiers_tell_its_own_answer_from_another(data_dir) -> None:
    tasks = logic_tasks(fetch(REASONING_GYM, data_dir))
    assert EACH * len(TASKS) - 6 == len(tasks)
    assert {task.score(task.entry["answer"]) for task in tasks.values()} == {1.0}
    assert max(task.score("I do not know.") for task in tasks.values()) < 0.1
    (chat,) = chat_stream("logic", data_dir, 1, seed=3)
    assert tasks[chat[-1]["content"]].score("") < 0.1
