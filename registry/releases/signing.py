"""Signatures of release files in the format of minisign (https://jedisct1.github.io/minisign), by py-minisign."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import ReleaseError
from ..paths import expanded
from ..untrusted.file_kinds import opened

SUFFIX = ".minisig"
"""What the name of a signature's file has in addition to the file's, as the program minisign names it."""

_TOLD = "kernel-registry release"


def sign(content: bytes, name: str, key: Path, password: Callable[[], str]) -> bytes:
    """The signature of a release's content by a secret key of minisign's; it covers the release's ``name``, too.

    ``password()`` is asked for an encrypted key. Raises ReleaseError for a key that cannot be read.
    """
    library = _library()
    try:
        secret = library.SecretKey.from_bytes(_read(key))
        if secret.is_encrypted():
            secret.decrypt(password())
        return bytes(secret.sign(content, trusted_comment=f"{_TOLD} {name}")) + b"\n"
    except library.Error as fault:
        raise ReleaseError(f"{key}: {fault}", hint="expected a secret key that `minisign -G` has made") from None


def verified_name(content: bytes, signature: bytes, keys: Sequence[str]) -> str:
    """The name of a release whose content one of the ``keys`` has signed.

    ``keys``: public keys of minisign's, each as its text (``RW...``) or its file. Raises ReleaseError for a signature
    by none of them, for other content than was signed, and for a signature of something else than a release.
    """
    library = _library()
    if not keys:
        raise ReleaseError("whose signature is to be trusted?", hint="give --key FILE, or the text of a public key")
    try:
        found = library.Signature.from_bytes(signature)
    except library.Error as fault:
        raise ReleaseError(f"the signature cannot be read: {fault}") from None
    faults = []
    for public in [_public_key(library, key) for key in keys]:
        try:
            public.verify(content, found)
        except library.Error as fault:
            faults.append(str(fault))
        else:
            break
    else:
        raise ReleaseError(
            f"the file is not as any of the {len(keys)} keys has signed it: {'; '.join(dict.fromkeys(faults))}",
            hint="it was changed, or signed by another key; nothing was imported",
        )
    told, _, name = found.trusted_comment.rpartition(" ")
    if told != _TOLD:
        raise ReleaseError(f"the signature is of {found.trusted_comment!r:.80}", hint="expected that of a release")
    return str(name)


def _public_key(library: Any, told: str) -> Any:
    path = expanded(told)
    try:
        if path.is_file():
            return library.PublicKey.from_bytes(_read(path))
        return library.PublicKey.from_base64(told)
    except library.Error:
        raise ReleaseError(
            f"{told!r:.80} is no public key", hint="expected the file minisign.pub, or its second line (RW...)"
        ) from None


def _read(path: Path) -> bytes:
    try:
        with opened(path) as file:
            return file.read()
    except OSError as fault:
        raise ReleaseError(f"{path}: {fault.strerror}", hint="expected a key of minisign's") from None


def _library() -> Any:
    try:
        import minisign
    except ImportError:
        raise ReleaseError(
            "signatures need the package py-minisign", hint="pip install 'kernel-registry[signing]'"
        ) from None
    return minisign
