"""The traces of a learning round: whether one is due, how many are claimed, and the outcome of each.

In: the buffer. Out: entries by outcome, with the features that a draft reads. Runs in the worker's thread.
"""
