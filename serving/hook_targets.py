"""What the plugin hooks in SGLang, and what the hook bodies read there, by dotted name."""

import ast
import functools
import inspect
import textwrap
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any, Final

#: Stage 1, in every SGLang process; the others are installed from inside it, in the scheduler process alone.
INIT_MODEL_WORKER: Final = "sglang.srt.managers.scheduler.Scheduler.init_model_worker"
#: In the HTTP process alone.
HANDLE_REQUEST: Final = "sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase.handle_request"
#: 0.5.22 added keyword arguments to this one (for watermarks) and to DRAFT_PREFILL (`kv_loc_plan`): a hook body names
#: what it reads, which is in front in every release, and takes whatever else comes.
EAGLE_SAMPLE: Final = "sglang.srt.speculative.eagle_utils.eagle_sample"
DRAFT_PREFILL: Final = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker._draft_extend_for_prefill"
FORWARD_PREFILL: Final = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2._forward_prefill_batch"
PULL_REQUESTS: Final = (
    "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver._pull_raw_reqs"
)
INIT_DISPATCHER: Final = "sglang.srt.managers.scheduler.Scheduler.init_request_dispatcher"
ADAPTIVE_CONTROLLER: Final = "sglang.srt.speculative.adaptive_runtime_state.AdaptiveController.__init__"
FORWARD: Final = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.forward_batch_generation"
ACTIVATE_STEP: Final = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.activate_step_by_batch"
_RESULTS: Final = "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
_DRAFT_WORKER: Final = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker"
SKIPPED_DRAFT: Final = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2._stub_skipped_draft_extend"
DRAFT: Final = f"{_DRAFT_WORKER}.draft"
WARM_DRAFT: Final = f"{_DRAFT_WORKER}._draft_extend_for_decode"
#: Of DFLASH, whose worker drafts, verifies and keeps features in one call.
_BLOCKS: Final = "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2"
BLOCK_WORKER: Final = f"{_BLOCKS}.__init__"
BLOCK_FORWARD: Final = f"{_BLOCKS}.forward_batch_generation"
ACCEPT_BLOCK: Final = f"{_BLOCKS}._accept_block"
KEEP_FEATURES: Final = f"{_BLOCKS}._append_target_hidden_to_draft_kv_by_loc"
#: Of NGRAM, whose worker does all in one call too; it verifies by EAGLE_SAMPLE.
_NGRAM: Final = "sglang.srt.speculative.ngram_worker.NGRAMWorker"
NGRAM_FORWARD: Final = f"{_NGRAM}.forward_batch_generation"
ADJUST_LOGITS: Final = "sglang.srt.speculative.dflash_utils.apply_dflash_verify_logits_adjustments"
RELEASE_CACHE: Final = "sglang.srt.mem_cache.common.release_kv_cache"
RESOLVE_TOKENS: Final = f"{_RESULTS}._resolve_spec_v2_tokens"
PREFILL_RESULT: Final = f"{_RESULTS}.process_batch_result_prefill"
STREAM_OUTPUT: Final = "sglang.srt.managers.scheduler_components.output_streamer.SchedulerOutputStreamer.stream_output"
#: What a trainer's weight updates go through, whichever way it sends them.
_UPDATES: Final = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
SELECT_RUNNERS: Final = f"{_UPDATES}._select_runners"
BEGIN_UPDATE: Final = f"{_UPDATES}.begin_weight_update"
END_UPDATE: Final = f"{_UPDATES}.end_weight_update"
LOADS: Final = tuple(f"{_UPDATES}.update_weights_from_{way}" for way in ("disk", "tensor", "distributed", "ipc"))
RECORD_UPDATE: Final = f"{_UPDATES}.record_weight_version_after_update"
RESUME_MEMORY: Final = f"{_UPDATES}.resume_memory_occupation"
NAME_VERSION: Final = "sglang.srt.managers.scheduler.Scheduler.handle_update_weight_version"
FLUSH_CACHE: Final = "sglang.srt.managers.scheduler.Scheduler.flush_cache"
OVERLAPS: Final = "sglang.srt.managers.scheduler.Scheduler.is_disable_overlap_for_batch"
FINISH: Final = "sglang.srt.managers.schedule_batch.Req.update_finish_state"
TARGETS: Final = (
    INIT_MODEL_WORKER,
    HANDLE_REQUEST,
    EAGLE_SAMPLE,
    DRAFT_PREFILL,
    FORWARD_PREFILL,
    PULL_REQUESTS,
    INIT_DISPATCHER,
    ADAPTIVE_CONTROLLER,
    FORWARD,
    ACTIVATE_STEP,
    SKIPPED_DRAFT,
    DRAFT,
    WARM_DRAFT,
    BLOCK_WORKER,
    BLOCK_FORWARD,
    ACCEPT_BLOCK,
    KEEP_FEATURES,
    NGRAM_FORWARD,
    ADJUST_LOGITS,
    RELEASE_CACHE,
    RESOLVE_TOKENS,
    PREFILL_RESULT,
    STREAM_OUTPUT,
    SELECT_RUNNERS,
    BEGIN_UPDATE,
    END_UPDATE,
    *LOADS,
    RECORD_UPDATE,
    RESUME_MEMORY,
    NAME_VERSION,
    FLUSH_CACHE,
    OVERLAPS,
    FINISH,
)

#: Attributes that hook bodies read, by their class or module; a blank between two. One that is gone keeps no hook from
#: being installed: it fails at the first request, or the first swap.
USED: Final[Mapping[str, str]] = {
    "sglang.srt.plugins.hook_registry.HookRegistry": "register apply_hooks _patched",
    "sglang.srt.server_args.ServerArgs": "port download_dir resolve_once check_server_args",
    # What get_parallel() and get_spec() of sglang.srt.runtime_context answer. Ranks are asked there and of no
    # ModelRunner, whose own tp_size went with 0.5.22.
    "sglang.srt.arg_groups.fields.parallel.Parallel": (
        "tp_size pp_size tp_group pp_rank attn_dp_size attn_dp_rank attn_tp_rank attn_cp_rank "
        "enable_dp_attention_local_control_broadcast"
    ),
    "sglang.srt.arg_groups.fields.spec.Spec": (
        "speculative_algorithm speculative_eagle_topk speculative_use_rejection_sampling speculative_adaptive "
        "speculative_num_steps speculative_num_draft_tokens speculative_draft_model_path "
        "speculative_draft_model_revision speculative_accept_threshold_single speculative_accept_threshold_acc "
        "speculative_draft_window_size"
    ),
    "sglang.srt.arg_groups.fields.exec_.ExecFeatures": "enable_custom_logit_processor",
    "sglang.srt.arg_groups.fields.exec_.ExecDeterministic": "enable_deterministic_inference",
    "sglang.srt.arg_groups.fields.disagg.Disagg": "disaggregation_mode",
    "sglang.srt.arg_groups.fields.model.Model": "model_path revision download_dir",
    "sglang.srt.arg_groups.fields.serving.Serving": "weight_version",
    "sglang.srt.arg_groups.fields.schedule.Schedule": "enable_mixed_chunk disable_overlap_schedule",
    "sglang.srt.arg_groups.fields.memory.Memory": "disable_radix_cache",
    "sglang.srt.runtime_context": (
        "get_spec get_parallel get_disagg get_model get_serving get_schedule get_memory get_exec publish"
    ),
    "sglang.srt.environ.envs": "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND",
    "sglang.srt.managers.scheduler.Scheduler": (
        "server_args draft_worker running_batch _request_dispatcher enable_overlap forward_stream schedule_stream "
        "weight_updater tree_cache result_queue"
    ),
    "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager": "offload_tags scheduler",
    "sglang.srt.mem_cache.base_prefix_cache.BasePrefixCache": "total_size",
    "sglang.srt.managers.io_struct": (
        "BeginWeightUpdateReqOutput UpdateWeightsFromTensorReqOutput UpdateWeightsFromDistributedReqOutput"
    ),
    "sglang.srt.managers.io_struct.BeginWeightUpdateReqInput": "selector",
    "sglang.srt.managers.io_struct.UpdateWeightsFromTensorReqInput": "selector",
    "sglang.srt.managers.io_struct.UpdateWeightsFromDistributedReqInput": "selector",
    "sglang.srt.managers.io_struct.UpdateWeightFromDiskReqOutput": "success message",
    "sglang.srt.managers.io_struct.UpdateWeightVersionReqInput": "new_version",
    "sglang.srt.managers.io_struct.ResumeMemoryOccupationReqInput": "tags",
    "sglang.srt.layers.linear.LinearBase": "quant_method",
    "sglang.srt.layers.quantization.unquant": "UnquantizedLinearMethod",
    "sglang.utils.TypeBasedDispatcher": "__iadd__",
    "sglang.srt.managers.schedule_batch.ScheduleBatch": (
        "reqs decoding_reqs forward_mode input_ids seq_lens extend_lens prefix_lens device sampling_info "
        "spec_info extend_logprob_start_lens extend_num_tokens seq_lens_cpu seq_lens_sum orig_seq_lens "
        "req_pool_indices req_pool_indices_cpu req_to_token_pool out_cache_loc has_grammar return_logprob "
        "top_logprobs_nums token_ids_logprobs extend_input_logprob_token_ids chunked_req "
        "chunked_req_next_prompt_token multimodal_inputs"
    ),
    "sglang.srt.managers.schedule_batch.Req": (
        "rid sampling_params grammar finished finished_reason spec_verify_ct lora_id multimodal_inputs input_embeds "
        "origin_input_ids output_ids spec_num_correct_drafts finished_len finished_output is_retracted "
        "skip_radix_cache_insert kv tokenizer eos_token_ids to_finish extra_key routing_key"
    ),
    "sglang.srt.sampling.sampling_params.SamplingParams": (
        "temperature top_k top_p custom_params logit_bias frequency_penalty presence_penalty repetition_penalty "
        "min_new_tokens stop_token_ids stop_strs stop_regex_strs"
    ),
    "sglang.srt.managers.auxiliary_output": "append_auxiliary_output",
    "sglang.srt.managers.auxiliary_output.CommittedTokens": "output_index token_ids",
    "sglang.srt.layers.logits_processor.LogitsProcessorOutput": (
        "next_token_logits hidden_states auxiliary_device_output"
    ),
    "sglang.srt.speculative.eagle_info.EagleVerifyInput": (
        "draft_token draft_token_num draft_probs retrieve_next_token retrieve_next_sibling tree_topk"
    ),
    "sglang.srt.speculative.dflash_info.DFlashVerifyInput": "draft_token draft_token_num",
    "sglang.srt.speculative.ngram_info.NgramVerifyInput": (
        "draft_token draft_token_num retrieve_next_token retrieve_next_sibling tree_topk"
    ),
    "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo": (
        "temperatures top_ps top_ks acc_additive_penalties acc_scaling_penalties penalizer_orchestrator"
    ),
    "sglang.srt.sampling.penaltylib.orchestrator.BatchedPenalizerOrchestrator": "is_required",
    "sglang.srt.speculative.eagle_utils": "_verify_uses_greedy _is_cpu _is_hip _is_xpu",
    "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2": (
        "weight_update_runners speculative_num_steps adaptive_controller draft_worker"
    ),
    "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker": "draft_runner target_worker",
    _NGRAM: "target_worker speculative_num_draft_tokens",
    _BLOCKS: "weight_update_runners target_worker speculative_num_draft_tokens _fused_kv_helper _init_fused_kv_helper",
    "sglang.srt.speculative.dflash_utils": "is_dflash_sampling_verify_available",
    "sglang.srt.managers.tp_worker.TpModelWorker": "model_runner",
    "sglang.srt.speculative.eagle_info.EagleDraftInput": "topk_p topk_index hidden_states",
    "sglang.srt.managers.utils.GenerationBatchResult": "logits_output next_token_ids",
    "sglang.srt.model_executor.forward_batch_info.ForwardMode": "EXTEND",
    "sglang.srt.model_executor.model_runner.ModelRunner": (
        "device gpu_id dtype model model_config weight_updater lora_manager"
    ),
    "sglang.srt.lora.lora_manager.LoRAManager": "lora_refs",
    "sglang.srt.lora.lora_registry.LoRARef": "lora_name",
    "sglang.srt.configs.model_config.ModelConfig": "model_path revision model_is_mrope",
    "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater": "update_weights_from_tensor",
}


def missing_targets() -> dict[str, str]:
    """What of TARGETS and USED the installed SGLang does not have, with the reason; imports it (seconds).

    Where a module of SGLang cannot be imported, the reason is why, and the same for every name in it.
    """
    used = [f"{owner}.{name}" for owner, names in USED.items() for name in names.split()]
    missing = {}
    for target in (*TARGETS, *used):
        owner, _, name = target.rpartition(".")
        try:
            _check(_found(owner), name)
        except (ImportError, AttributeError) as fault:
            missing[target] = str(fault)
    return missing


def _found(name: str) -> Any:
    """A module, or what is in one; ImportError where a module is missing or does not import.

    Without a colon, resolve_name would call a module that does not import an attribute that is missing.
    """
    parts = name.split(".")
    for at in range(1, len(parts)):
        module = ".".join(parts[: at + 1])
        inside = ".".join(parts[at:])
        try:
            resolve_name(f"{module}:")
        except ModuleNotFoundError as fault:
            if fault.name != module:  # what the module imports is missing
                raise
            return resolve_name(f"{'.'.join(parts[:at])}:{inside}")
    return resolve_name(f"{name}:")


def _check(owner: Any, name: str) -> None:
    """Raise AttributeError unless `owner`, a module or a class, or the class's instances have an attribute `name`."""
    if not hasattr(owner, name) and not (isinstance(owner, type) and name in _instance_attributes(owner)):
        raise AttributeError(f"{owner.__name__!r} has no attribute {name!r}")


@functools.cache
def _instance_attributes(owner: type) -> frozenset[str]:
    """Fields of a class and its bases, and what their methods assign to `self`: most are on no class object."""
    bases = [base for base in owner.__mro__ if base is not object]
    fields = {name for base in bases for name in inspect.get_annotations(base)}
    return frozenset(fields.union(*map(_assigned_to_self, bases)))


def _assigned_to_self(owner: type) -> set[str]:
    try:
        source = inspect.getsource(owner)
    except (OSError, TypeError):  # a class of C, or one made at run time
        return set()
    return {
        node.attr
        for node in ast.walk(ast.parse(textwrap.dedent(source)))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
