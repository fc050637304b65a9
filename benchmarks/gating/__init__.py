"""Parts of the gate bench: pools of recorded requests, streams, trained lines, and the rules that deliver drafts.

What comes in are traces of the real server; what goes out are figures of delivery rules. ../gate.py runs it.
"""
