"""Names of figures that a version carries on the board, in `DraftVersion.scores`; the gate's others have no reader."""

#: Tokens per verify round, 1 + accepted drafts, of the traffic that this draft was trained on last, with the weights it
#: had before.
JUDGED_SCORE = "judged_accept_length"
#: The same of its own weights, on requests that had come when it was published and that it had not learnt; and its
#: standard error, prompts drawn as wholes. Both are absent where these were few, and of a draft that was refused.
PREDICTED_SCORE = "predicted_accept_length"
PREDICTED_STANDARD_ERROR = "predicted_standard_error"
