"""Token ids to text, by the tokenizer that a checkpoint of the run holds; without one the report shows ids.

Only `tokenizer.json` is read, with the `tokenizers` package: importing transformers for it would cost seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plugym.store import RunDir


class Vocabulary:
    """The text of each token id that was asked for, in `table`. Without a tokenizer the table stays empty.

    `source` says for readers where the text comes from, or why there is none. A character that several tokens spell
    together shows as U+FFFD in each of them.
    """

    def __init__(self, tokenizer: Any, source: str) -> None:
        self._tokenizer = tokenizer
        self.source = source
        self.table: dict[int, str] = {}
        # Many decoders strip the blank before the first word, so a token is decoded behind another one.
        self._anchor = tokenizer.encode("a", add_special_tokens=False).ids[-1:] if tokenizer is not None else []
        self._offset = len(self._decode(self._anchor)) if tokenizer is not None else 0

    @classmethod
    def of(cls, run: RunDir) -> Vocabulary:
        """That of the newest checkpoint."""
        checkpoint = run.latest_checkpoint()
        path = checkpoint / "tokenizer.json" if checkpoint is not None else None
        if path is None or not path.is_file():
            return cls(None, "Token ids: the run has no checkpoint with a tokenizer.json yet")
        try:
            from tokenizers import Tokenizer
        except ImportError:
            return cls(None, "Token ids: pip install 'plugym[torch]' to see text")
        try:
            return cls(Tokenizer.from_file(str(path)), f"Tokens decoded by {path.relative_to(run.path)}")
        except Exception as error:  # the Rust library raises plain Exception for whatever it does not like
            return cls(None, f"Token ids: {path.relative_to(run.path)} cannot be used: {error}")

    def note(self, ids: Sequence[int]) -> None:
        """Put the texts of these ids into the table."""
        if self._tokenizer is not None:
            for token in set(ids) - self.table.keys():
                self.table[token] = self._decode([*self._anchor, token])[self._offset :]

    def text(self, ids: Sequence[int]) -> str | None:
        """A run of tokens as one text; None without a tokenizer."""
        return None if self._tokenizer is None else self._decode(list(ids))

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))
