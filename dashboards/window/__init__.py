"""The live page: one process that reads the boards of all speculators and shows them to browsers on this machine.

In: boards, read once a second however many tabs look on; an operator's acts as two callables that the CLI hands in.
Out: eight panels as JSON, one event stream per tab, and the page in static/ that draws them. Nothing here writes by
itself.
"""
