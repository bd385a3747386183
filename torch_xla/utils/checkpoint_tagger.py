"""Names for checkpoints, such as "best" and "last", and the end of those that have lost all."""

from __future__ import annotations

import json
from collections.abc import Callable


class CheckpointTagger:
    """Keeps which checkpoint has which name.

    Args:
        remover: Called with the path of a checkpoint when its last name goes to another.
    """

    def __init__(self, remover: Callable[[str], None] | None = None):
        self._remover = remover
        self._tags: dict[str, str] = {}

    def tag(self, name: str, path: str) -> None:
        """Gives a name to the checkpoint at `path`; one that had it before loses it."""
        before = self._tags.get(name)
        self._tags[name] = path
        if before is not None and before not in self._tags.values() and self._remover is not None:
            self._remover(before)

    @property
    def tags(self) -> dict[str, str]:
        """The path of each name."""
        return dict(self._tags)

    def save_to_json(self) -> str:
        """The names as text, for `load_from_json`."""
        return json.dumps(self._tags)

    @classmethod
    def load_from_json(
        cls, str_json: str, remover: Callable[[str], None] | None = None
    ) -> CheckpointTagger:
        """A tagger with the names that `save_to_json` wrote."""
        tagger = cls(remover)
        tagger._tags.update(json.loads(str_json))
        return tagger
