"""Drafters without a model, replayed on captured text: would one of them do better than the draft that serves?

In: traces. Out: by label, how many verify rounds each would have needed. The learner enters.
"""
