"""The stream: traces on their way from serving to learners; each is claimed, then acked or buried, and counted.

In: DraftTrace from serving. Out: the same to learners, and counts of where every one went.
"""
