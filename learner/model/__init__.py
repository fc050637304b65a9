"""Learner process: the EAGLE-3 draft as a module, and its files.

In: config.json and safetensors in SGLang's layout. Out: a draft to train or replay, and the same files again.
Training, judging and delivery enter; it knows none of them.
"""
