"""The errors a user can meet. All say what is wrong, with the offending value, and what to do."""


class SpecUnsupportedError(ValueError):
    """The call cannot be decoded speculatively *and* exactly. Raised before the first token; nothing has been changed.

    `spec_fallback="plain"` turns it into one warning and plain decoding, but not where tokens are drawn with a
    `generator=`.
    """


class SpecNumericsError(RuntimeError):
    """No token can be taken from a model's logits: they are NaN, or, where tokens are drawn, infinite or all masked.
    The message names the row and the position."""


class SpecDraftError(RuntimeError):
    """Drafting failed in the middle of a call (out of memory; a processor that can no longer be copied). The message
    names the cause and the way out."""
