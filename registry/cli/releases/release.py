"""``registry release``: sets of winners that never change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import RegistryError, ReleaseError
from ...untrusted.file_kinds import opened
from ..collecting import seldom_collecting
from ..display import text
from ..display.table import Column, Group, print_table
from ..exchange import hardware_named
from ..options import Database, Json, OneOp, check_stored_op, number

if TYPE_CHECKING:
    from tuning_db.releases import Release

PASSWORD_VARIABLE = "KERNEL_REGISTRY_SIGNING_PASSWORD"

ReleaseName = Annotated[str, typer.Argument(metavar="NAME", help="The release's name, e.g. 2026-11-llama.")]
_COLUMNS = (Column("release"), Column("id"), Column("winners", right=True), Column("created"))


def create(
    name: ReleaseName,
    op: OneOp = None,
    hardware: Annotated[
        str | None, typer.Option("--hardware", metavar="NAME", help="Only winners on this, e.g. 'NVIDIA H200'.")
    ] = None,
    db: Database = None,
    json: Json = False,
) -> None:
    """Make a release of the winners that the database has now.

    It holds their decisions with all finals and the latest runs, never changes, and is known by a hash of them. A name
    is given once; made again of the same winners and runs, the release is left as it is. KERNEL_REGISTRY_RELEASE=NAME
    pins a process to it.
    """
    from tuning_db import Store

    with Store.open(db, create=False) as store, seldom_collecting():
        check_stored_op(op, store)
        chosen = None if hardware is None else hardware_named(hardware, store)
        made = store.create_release(name, op=op, hardware=chosen)
    if json:
        text.print_json(_data(made))
        return
    text.say(f"{made}: {text.plural(made.winners, 'winner')}")


def list_(db: Database = None, json: Json = False) -> None:
    """List the releases in the database, newest first."""
    from tuning_db import Store

    with Store.open(db, create=False, migrate=False) as store:
        found, where = store.releases(), store.url
    if json:
        text.print_json([_data(one) for one in found])
    elif found:
        rows = [[one.name, one.id, f"{one.winners:,}", f"{one.created:%Y-%m-%d %H:%M} UTC"] for one in found]
        print_table(_COLUMNS, [Group("", rows)])
    else:
        text.say(f"no release in {where}: `registry release create NAME` makes one")


def export(
    name: ReleaseName,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write, e.g. NAME.jsonl. Never overwritten.")],
    sign: Annotated[
        Path | None,
        typer.Option(
            "--sign",
            metavar="KEY",
            help="Sign it with this secret key of minisign's: FILE.minisig. Its password is asked for, or "
            f"{PASSWORD_VARIABLE}.",
        ),
    ] = None,
    db: Database = None,
) -> None:
    """Write a release to a file, and its signature.

    The file's SHA-256 is the release's id. It is in the format of `registry export`, so that `registry compare` reads
    it, and a process can be pinned to it: KERNEL_REGISTRY_RELEASE=FILE. A signature covers the release's name, also
    where its id is given.
    """
    from ...releases import signing
    from ...releases.pinning import release_content, release_name

    content = release_content(name, db)
    signature = b"" if sign is None else signing.sign(content, release_name(name, db), sign, _password)
    _write(file, content)
    if sign is not None:
        _write(_signature_of(file), signature)
    text.say(f"{name} written to {file}{f', its signature to {_signature_of(file)}' if sign else ''}")


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `registry release export` wrote.")],
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key", metavar="KEY", help="A public key that is trusted, as its file or its text (RW...). Repeatable."
        ),
    ] = None,
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Import a file without looking at a signature.")] = False,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="With --unsigned: the release's name. Default: the file's. With --key: the name that was signed.",
        ),
    ] = None,
    db: Database = None,
    json: Json = False,
) -> None:
    """Add a release from a file, if a trusted key has signed it.

    FILE.minisig must be a signature of exactly this file by one of the keys. Nothing else in the database changes: its
    own winners stay as they are.
    """
    from tuning_db import ExchangeError, Store

    content = _read(file)
    if unsigned:
        named = name or file.stem
    elif name is not None:
        raise RegistryError(f"--name {name} without --unsigned", hint="a signed release has the name that was signed")
    else:
        from ...releases import signing

        named = signing.verified_name(content, _read(_signature_of(file)), key or [])
    try:
        with Store.open(db) as store, seldom_collecting():
            made = store.add_release(named, content)
    except ExchangeError as fault:
        raise ReleaseError(f"{file}: {fault.message}", hint="nothing was imported") from None
    if json:
        text.print_json(_data(made))
        return
    text.say(f"{made}: {text.plural(made.winners, 'winner')}")


def prune(
    days: Annotated[
        float, typer.Option("--days", metavar="N", parser=number, help="Keep what was read within so many days.")
    ] = 90.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be removed.")] = False,
    json: Json = False,
) -> None:
    """Remove copies of releases and of site databases from this machine that nobody has read for a while.

    Databases keep their releases: a process that is pinned to one of these copies it again.
    """
    if not days >= 0:
        raise typer.BadParameter(f"--days {days:g}: expected 0 or more")
    from ...releases import pruning

    found = pruning.prune(days, dry=dry_run)
    if json:
        text.print_json([str(path) for path in found])
        return
    for path in found:
        text.say(str(path))
    text.say(f"{text.plural(len(found), 'file')} {'would be removed' if dry_run else 'removed'}")


def _data(release: Release) -> dict[str, Any]:
    return {**vars(release), "created": release.created.isoformat()}


def _signature_of(file: Path) -> Path:
    from ...releases.signing import SUFFIX

    return file.with_name(file.name + SUFFIX)


def _password() -> str:
    import os

    given = os.environ.get(PASSWORD_VARIABLE)
    return str(typer.prompt("password of the key", hide_input=True, err=True)) if given is None else given


def _write(file: Path, content: bytes) -> None:
    try:
        with file.open("xb") as stream:
            stream.write(content)
    except OSError as fault:
        raise ReleaseError(f"{file}: {fault.strerror}", hint="expected a file that can be made") from None


def _read(file: Path) -> bytes:
    hint = "expected a release and its signature; --unsigned needs none"
    try:
        if file.is_char_device():  # /dev/zero never ends
            raise ReleaseError(f"{file}: a device", hint=hint)
        with opened(file) as stream:
            return stream.read()
    except OSError as fault:
        raise ReleaseError(f"{file}: {fault.strerror}", hint=hint) from None
