"""Causes planted on a running server, one at a time, switched off and on in turn, and what `explain` says of them."""
