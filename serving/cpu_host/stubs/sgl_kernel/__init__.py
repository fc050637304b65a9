"""Stand-in for the CPU build of sgl_kernel, of which pip has only the CUDA build: the operations that SGLang
0.5.21 to 0.5.23 import by name when SGLANG_USE_CPU_ENGINE=1, in plain torch. Names and argument orders are SGLang's,
the same in all three.
"""

from .cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
)
from .renorm import top_k_renorm_prob, top_p_renorm_prob
from .sampled_verify import chain_speculative_sampling_cpu, tree_speculative_sampling_target_only
from .tokens import fill_bonus_tokens_cpu, rotate_input_ids_cpu
from .tree import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "chain_speculative_sampling_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "top_k_renorm_prob",
    "top_p_renorm_prob",
    "tree_speculative_sampling_target_only",
    "verify_tree_greedy_cpu",
]
