"""Swaps on a GPU, as far as a recording double shows: device, streams, memory, and what is left there."""

import ast
import importlib.util
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fake_cuda import GPU, FakeCuda, OnGpu
from paceline.buffer.board.weights_file import sha256_of
from paceline.serving.swap import sglang_draft
from paceline.serving.swap.commands import Act, SwapCommand
from paceline.serving.swap.sglang_swap import RankSwap
from paceline.serving.swap.staging import KEPT_DRAFTS, Staging
from safetensors.torch import save_file

DRAFTS = 4


class Updater:
    """Copies in place like SGLang's weight updater; `fail_once` stops it after the first parameter."""

    def __init__(self):
        self.model = torch.nn.Module()
        for name in ("fc", "norm"):
            empty = torch.zeros(3, 5, dtype=torch.bfloat16).as_subclass(OnGpu)
            self.model.register_parameter(name, torch.nn.Parameter(empty, requires_grad=False))
        self.fail_once = False

    def update_weights_from_tensor(self, tensors, load_format):
        assert load_format is None
        for name, tensor in tensors:
            assert tensor.device == GPU
            self.model.get_parameter(name).copy_(tensor)
            if self.fail_once:
                self.fail_once = False
                raise RuntimeError("half of it is copied")
        return True, "Success"


def runner_on_the_gpu(folder):
    """What swaps read of SGLang's ModelRunner, on a rank that runs on the fourth GPU."""
    updater = Updater()
    return SimpleNamespace(
        device="cuda",
        gpu_id=GPU.index,
        dtype=torch.bfloat16,
        weight_updater=updater,
        model=updater.model,
        model_config=SimpleNamespace(model_path=str(folder), revision=None),
    )


def scheduler_of(runner, *, overlap=True):
    """What swaps read of SGLang's Scheduler."""
    return SimpleNamespace(
        draft_worker=SimpleNamespace(weight_update_runners=lambda: (("draft", runner),)),
        server_args=SimpleNamespace(download_dir=None),
        running_batch=SimpleNamespace(reqs=[]),
        enable_overlap=overlap,
        forward_stream="forward",
        schedule_stream="schedule",
        weight_updater=SimpleNamespace(offload_tags=set()),
    )


@pytest.fixture
def drafts(tmp_path):
    """What each version's file holds, in float32 as learners write it."""
    generator, made = torch.Generator().manual_seed(7), []
    for number in range(DRAFTS):
        made.append({name: torch.randn(3, 5, generator=generator) for name in ("fc", "norm")})
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "config.json").write_text("{}")
        save_file(made[-1], tmp_path / f"{number}" / "model.safetensors")
    return made


@pytest.fixture
def cuda(monkeypatch, layers):
    return FakeCuda(monkeypatch)


def bound(folder, *, overlap=True):
    """A RankSwap bound to the first draft, in the scheduler thread, whose device SGLang has set."""
    torch.cuda.set_device(GPU)
    swap = RankSwap(0, folder)
    swap._scheduler = scheduler_of(runner_on_the_gpu(folder / "0"), overlap=overlap)
    swap._bind(swap._scheduler)
    swap.fault = ""
    return swap


def swapped(swap, folder, number):
    """Prepare and commit one version, and return the answer to the commit."""
    file = folder / f"{number}" / "model.safetensors"
    staging = swap.channel.stagings[number] = Staging()
    swap._handle(SwapCommand(act=Act.PREPARE, attempt=number, number=number, file=str(file), sha256=sha256_of(file)))
    assert staging.done.wait(30.0)
    swap._handle(SwapCommand(act=Act.COMMIT, attempt=number, number=number, file=str(file), sha256=sha256_of(file)))
    return swap.channel.answers.get_nowait()


def held(swap):
    """The model's own parameters, for comparison bit by bit."""
    model = swap._live._runner.model
    return {name: parameter.as_subclass(torch.Tensor).clone() for name, parameter in model.named_parameters()}


def is_bit_equal(weights, draft):
    """Whether `weights` are those of the file in the server's dtype."""
    return all(
        torch.equal(weights[name].view(torch.int16), tensor.to(torch.bfloat16).view(torch.int16))
        for name, tensor in draft.items()
    )


@pytest.mark.parametrize(("overlap", "stream"), [(True, "forward"), (False, "schedule")])
@pytest.mark.usefixtures("drafts")
def test_a_commit_copies_pinned_memory_to_the_runners_own_gpu_between_two_forwards(cuda, tmp_path, overlap, stream):
    assert swapped(bound(tmp_path, overlap=overlap), tmp_path, 1).outcome is not None
    assert cuda.to_device == 2 * [(GPU, stream, True, True)]


def test_drafts_are_kept_in_pinned_host_memory_and_nothing_of_them_stays_on_the_gpu(cuda, tmp_path, drafts):
    swap = bound(tmp_path)
    for number in range(1, DRAFTS):
        assert swapped(swap, tmp_path, number).outcome is not None
        assert is_bit_equal(held(swap), drafts[number])
        assert cuda.left_on_device() == 0
    kept = [tensor for number in swap._kept for _, tensor in swap._kept[number].tensors]
    assert len(kept) == 2 * KEPT_DRAFTS
    assert {(tensor.device.type, tensor.is_pinned()) for tensor in kept} == {("cpu", True)}


@pytest.mark.usefixtures("drafts")
def test_staging_threads_use_the_runners_gpu_and_no_memory_of_it(cuda, tmp_path):
    swap = bound(tmp_path)
    cuda.pinned_by.clear()
    staged = []
    thread = threading.Thread(
        target=lambda: staged.append(swap._staged_from(str(tmp_path / "1" / "model.safetensors"), "")), name="stager"
    )
    thread.start()
    thread.join()
    assert cuda.pinned_by == 2 * [("stager", GPU)]
    assert (len(staged), cuda.to_device) == (1, [])


def test_memory_for_every_draft_that_is_kept_and_one_that_is_staged_is_pinned_before_anything_is_served(
    cuda, tmp_path, drafts
):
    file = tmp_path / "0" / "model.safetensors"
    save_file({name: tensor.to(torch.bfloat16) for name, tensor in drafts[0].items()}, file)
    bound(tmp_path)
    assert cuda.pinned_bytes.count(file.stat().st_size) == KEPT_DRAFTS + 1


def test_a_file_in_the_servers_dtype_is_read_into_one_piece_of_pinned_memory_and_never_copied(cuda, tmp_path, drafts):
    swap = bound(tmp_path)
    file = tmp_path / "1" / "model.safetensors"
    in_bfloat16 = {name: tensor.to(torch.bfloat16) for name, tensor in drafts[1].items()}
    save_file(in_bfloat16, file)
    cuda.pinned_by.clear()
    staged = swap._staged_from(str(file), sha256_of(file))
    assert len(cuda.pinned_by) == 1
    assert len({tensor.untyped_storage().data_ptr() for _, tensor in staged.tensors}) == 1
    assert all(torch.equal(tensor, in_bfloat16[name]) and tensor.is_pinned() for name, tensor in staged.tensors)


@pytest.mark.usefixtures("drafts")
def test_tensors_of_mixed_dtypes_are_all_pinned(cuda, tmp_path, drafts):
    swap = bound(tmp_path)
    file = tmp_path / "1" / "model.safetensors"
    save_file({"fc": drafts[1]["fc"].to(torch.bfloat16), "norm": drafts[1]["norm"]}, file)
    staged = swap._staged_from(str(file), "")
    assert [(name, tensor.dtype, tensor.is_pinned()) for name, tensor in staged.tensors] == [
        ("fc", torch.bfloat16, True),
        ("norm", torch.bfloat16, True),
    ]


def test_a_copy_that_fails_half_way_is_put_back_to_the_last_bit(cuda, tmp_path, drafts, monkeypatch):
    swap = bound(tmp_path)
    swapped(swap, tmp_path, 1)
    swap._live._runner.weight_updater.fail_once = True
    monkeypatch.setattr(sglang_draft.log, "exception", lambda *_: None)  # pytest keeps what is logged, frames and all
    assert "half of it is copied" in swapped(swap, tmp_path, 2).why
    assert is_bit_equal(held(swap), drafts[1])
    assert (swap.draft_version, cuda.most_on_device) == (1, len(drafts[1]))  # never two drafts beside the live one


@pytest.mark.usefixtures("drafts")
def test_samples_of_the_model_come_to_the_host_without_waiting(cuda, tmp_path):
    probe = swapped(bound(tmp_path), tmp_path, 1).probe
    assert cuda.to_host == 2 * [("forward", True, True)]  # one at the start, one after the commit
    assert cuda.events == 2 * ["forward"]
    assert {probe.file.device.type, probe.model.device.type} == {"cpu"}


def class_of(module, owner):
    """A class of the installed SGLang, parsed and not imported."""
    found = importlib.util.find_spec("sglang")
    if found is None:
        pytest.skip("SGLang is not installed here")
    source = Path(found.origin).parent.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    (made,) = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ClassDef) and n.name == owner]
    return made


def assigned_by(made):
    """Attributes that a class assigns to itself."""
    stored = [n for n in ast.walk(made) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
    return {n.attr for n in stored if getattr(n.value, "id", "") == "self"}


def test_the_doubles_have_attributes_that_sglangs_own_classes_set():
    runner = vars(runner_on_the_gpu("")).keys()
    assert runner - assigned_by(class_of("srt.model_executor.model_runner", "ModelRunner")) == set()
    scheduler = vars(scheduler_of(None)).keys()
    assert scheduler - assigned_by(class_of("srt.managers.scheduler", "Scheduler")) == set()


def test_sglang_notes_what_it_releases_where_swaps_look_for_it():
    assert "self.weight_updater = SchedulerWeightUpdaterManager(" in ast.unparse(
        class_of("srt.managers.scheduler", "Scheduler")
    )
    updater = class_of("srt.managers.scheduler_components.weight_updater", "SchedulerWeightUpdaterManager")
    methods = {n.name: ast.unparse(n) for n in updater.body if isinstance(n, ast.FunctionDef)}
    noted = [name for name, body in methods.items() if "offload_tags" in body]
    assert noted == ["release_memory_occupation", "resume_memory_occupation"]
    assert "self.offload_tags.add(tag)" in methods["release_memory_occupation"]
    assert "self.offload_tags.remove(tag)" in methods["resume_memory_occupation"]
