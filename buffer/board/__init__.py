"""The board: draft versions and what was decided about them, the members that beat, and who may act as an operator.

In: events of versions, statuses of members, acts of operators. Out: the state that all of them add up to.
"""
