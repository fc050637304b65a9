"""A chat as every chat template takes it."""

#: {"role": "system", "user" or "assistant", "content": text}
Message = dict[str, str]
Chat = tuple[Message, ...]


def said(role: str, content: str) -> Message:
    """One message."""
    return {"role": role, "content": content}


def asked(question: str) -> Chat:
    """A chat that a user begins."""
    return (said("user", question),)
