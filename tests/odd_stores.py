"""Stores in this process's memory that misbehave, by their scheme: what memory://a has, each of them has at its a."""

import io
import threading

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class Odd(MemoryFileSystem):
    """What they share."""

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.rpartition("://")[2])


class EndsEarly(Odd):
    """The last byte of every file never comes."""

    protocol = "endsearly"

    def _open(self, path, mode="rb", **options):
        if mode != "rb":
            return super()._open(path, mode, **options)
        return io.BytesIO(self.store[path].getvalue()[:-1])


class Slow(Odd):
    """Nothing can be opened before a test lets it."""

    protocol = "slow"
    asked = threading.Event()
    go = threading.Event()

    def _open(self, path, mode="rb", **options):
        self.asked.set()
        assert self.go.wait(60), "nobody let the slow store go on"
        return super()._open(path, mode, **options)


class Expired(Odd):
    """Takes, gives and lists nothing, as S3 does with a credential that has expired."""

    protocol = "expired"

    def _refuse(self, *_, **__):
        raise PermissionError("The provided token has expired.")

    put_file = info = ls = rm = _open = _refuse


def register():
    for kind in (EndsEarly, Slow, Expired):
        fsspec.register_implementation(kind.protocol, kind, clobber=True)
