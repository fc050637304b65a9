"""Simulated replicas on a real Redis: what of couriers and swappers talks to it, and what looks at all of them.

In: traces that the product's own hooks and courier made. Out: processor time and memory by number of replicas.
"""
