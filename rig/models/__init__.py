"""Small models in the real formats, made on this machine: text, a tokenizer, a trained target, a random draft.

In: text that every Python machine has. Out: a target folder and a draft folder.
Only demo, tests and benchmarks import it.
"""
