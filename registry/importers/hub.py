"""Downloads from the Hugging Face hub, or a server that behaves as it does (``HF_ENDPOINT``), at a pinned commit."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InvalidDefinitionError, UnsupportedError

_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+\Z", re.ASCII)
_INSTALL = "pip install kernel-registry[kernels], or give FOLDER:function"
_ELSEWHERE = "download it elsewhere, and give FOLDER:function"
_PIN = "pin the 40 hexadecimal digits of a commit: a branch or tag may be another kernel tomorrow"
_ASK_S = 10.0
_KINDS = ("kernel", "model")
"""Kinds of repositories that hold kernels; an older ``huggingface_hub`` knows the second one only."""

_REFUSALS: Mapping[str, tuple[str, str]] = {
    "RevisionNotFoundError": ("it has no such commit", "look at its commits; one that was rewritten is gone"),
    "GatedRepoError": ("it asks who downloads it", "accept its terms on the hub, then set HF_TOKEN"),
    "RepositoryNotFoundError": ("there is none of that name", "expected ORG/NAME; for a private one set HF_TOKEN"),
}
"""Name of an exception of ``huggingface_hub`` -> its meaning, and what to do; the most telling first."""


class HubCommit(NamedTuple):
    """A commit of a repository, ``ORG/NAME``; ``kind``: of the repository, "" where the hub cannot be asked."""

    repository: str
    commit: str
    kind: str

    def downloaded(self, patterns: Sequence[str]) -> Path:
        """The folder with the commit's files that match one of the patterns; without the hub, the cached one.

        Raises UnsupportedError.
        """
        faults: list[Exception] = []
        for kind in [self.kind] if self.kind else _KINDS:
            try:
                return Path(
                    _hub().snapshot_download(
                        self.repository, revision=self.commit, repo_type=kind, endpoint=_endpoint(),
                        allow_patterns=list(patterns), local_files_only=not self.kind,
                    )
                )  # fmt: skip
            except Exception as fault:  # network and disk faults of many kinds
                faults.append(fault)
        why = _told(faults[-1]) if self.kind else "it cannot be reached, and the files are not in the cache"
        raise UnsupportedError(_failed(self.repository, self.commit, why), hint=_ELSEWHERE) from faults[-1]

    def files(self) -> list[str]:
        """The names of all files of the commit; none where the hub cannot be asked."""
        if not self.kind:
            return []
        found = _api().list_repo_files(self.repository, revision=self.commit, repo_type=self.kind)
        return sorted(map(str, found))


def commit_at(place: str) -> HubCommit:
    """The commit that ``ORG/NAME@COMMIT`` names.

    Raises InvalidDefinitionError for a place without a pinned commit, UnsupportedError for one that the hub has not.
    """
    repository, _, revision = place.partition("@")
    if not _REPOSITORY.match(repository):
        raise InvalidDefinitionError(
            f"{place!r} is no folder, and no repository", hint="expected FOLDER:function or ORG/NAME@COMMIT:function"
        )
    is_pinned = _COMMIT.match(revision) is not None
    kind, found, refused = _asked(repository, revision) if revision else ("", "", "")
    if not is_pinned:
        now = f"; now it is {repository}@{found}" if kind else ""
        raise InvalidDefinitionError(
            f"{place!r} is no folder, and the revision {revision!r} is no commit", hint=_PIN + now
        )
    if refused:
        why, hint = _REFUSALS[refused]
        raise UnsupportedError(_failed(repository, revision, why), hint=hint)
    if kind and found != revision:
        raise UnsupportedError(
            _failed(repository, revision, f"it answers with commit {found}"),
            hint="a branch or a tag has the name of a commit: pin the commit itself",
        )
    return HubCommit(repository, revision, kind)


def _asked(repository: str, revision: str) -> tuple[str, str, str]:
    """The kind of a repository and the commit of a revision, or why not: a name of ``_REFUSALS``, "" without a hub."""
    refused: set[str] = set()
    for kind in _KINDS:
        try:
            info = _api().repo_info(repository, revision=revision, repo_type=kind, timeout=_ASK_S)
        except UnsupportedError:
            raise
        except Exception as fault:  # network and permission faults of many kinds
            refused.add(type(fault).__name__)
        else:
            return kind, str(info.sha), ""
    return "", "", next((name for name in _REFUSALS if name in refused), "")


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as fault:
        raise UnsupportedError("huggingface_hub is not installed", hint=_INSTALL) from fault
    return huggingface_hub


def _api() -> Any:
    return _hub().HfApi(endpoint=_endpoint())


def _endpoint() -> str:
    """The URL of the hub: ``HF_ENDPOINT``, or that of Hugging Face."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def _failed(repository: str, commit: str, why: str) -> str:
    return f"{repository}@{commit[:12]} cannot be downloaded from {_endpoint()}: {why}"


def _told(fault: Exception) -> str:
    lines = str(fault).strip().splitlines()
    return f"{type(fault).__name__}: {lines[0]:.200}" if lines else type(fault).__name__
