"""Learner process: the draft as a module, EAGLE-3 or MTP, and its files; the target, where it recomputes features.

In: config.json and safetensors in SGLang's layout. Out: a draft to train or replay, and the same files again; features.
Training, judging, delivery, the rig and the benchmarks import it; it imports none of them.
"""
