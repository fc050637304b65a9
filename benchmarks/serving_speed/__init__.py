"""What paceline brings in tokens per second: servers that run at the same time, asked the same in random order.

In: a target, drafts, a stream of prompts that shifts. Out: every answer with its times, and tables drawn from them.
"""
