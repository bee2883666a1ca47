"""A model's config.json, as a dict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Where a multimodal config keeps the config of its language model.
TEXT_CONFIGS = ("text_config", "decoder", "language_config", "llm_config")


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object")
    return content


def text_facts(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json with the keys of its language model in reach."""
    return next((config[key] for key in TEXT_CONFIGS if isinstance(config.get(key), dict)), {}) | config
