"""Chats as streams write them."""

from ..prompts import Chat, Message


def said(role: str, content: str) -> Message:
    """One message."""
    return {"role": role, "content": content}


def asked(question: str) -> Chat:
    """A chat that a user begins."""
    return (said("user", question),)
