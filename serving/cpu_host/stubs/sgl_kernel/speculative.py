"""Where SGLang's NGRAM worker looks for its tree kernel."""

from .tree import reconstruct_indices_from_tree_mask

__all__ = ["reconstruct_indices_from_tree_mask"]
