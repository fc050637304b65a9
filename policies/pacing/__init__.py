"""How many tokens to draft: the most goodput by acceptance and step costs.

In: accepted drafts and costs per decode step. Out: the number of draft steps of the next one. Serving enters.
"""
