"""A tokenizer from wherever it lies: a folder, a file, the hub's local cache, a package, a GGUF file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from onepolicy.engines.models import PACKAGED_MODELS, is_packaged, packaged_gguf
from onepolicy.errors import TokenizerError
from onepolicy.tokens.gguf import is_gguf
from onepolicy.tokens.gguf_pipeline import read_gguf
from onepolicy.tokens.tokenizer import StoredTokenizer

MAX_FILE = 1 << 29
"""bytes of a JSON file that is read; the largest known `tokenizer.json` has 33 MB"""
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
SETTINGS = (
    "add_bos_token",
    "add_eos_token",
    "clean_up_tokenization_spaces",
    "fix_mistral_regex",
    "split_special_tokens",
)
"""keys of `tokenizer_config.json` that change ids or text in ways that `tokenizer.json` does not hold"""
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_OTHER_FORMATS = ("tokenizer.model", "vocab.json", "vocab.txt", "tiktoken.model", "tekken.json")


def open_tokenizer(target: str) -> StoredTokenizer:
    """The tokenizer that `target` names. Nothing is downloaded, and no code of a model runs.

    `target` is a folder with a `tokenizer.json`, such a file, a GGUF file, a packaged model's name (`smollm2`), or a
    hub id whose files lie in the local cache.

    Raises: TokenizerError that says what was found instead.
    """
    try:
        return _opened(target)
    except OSError as error:
        raise TokenizerError(
            f"{target}: {error.strerror} ({error.filename}). Check the path and its rights."
        ) from error


def _opened(target: str) -> StoredTokenizer:
    if is_packaged(target):
        return read_gguf(packaged_gguf(target), origin=target)
    path = Path(target).expanduser()
    if target and path.is_dir():
        return _of_folder(path, origin=target)
    if path.is_file():
        return _of_file(path, origin=target)
    if _HUB_ID.fullmatch(target) and not target.startswith(".") and not path.parent.is_dir():
        return _of_folder(_cached(target), origin=target)
    raise TokenizerError(
        f"{target!r} is no folder, no file and no packaged model. Give a model's folder, a tokenizer.json, a .gguf "
        f"file, a hub id that was downloaded before, or one of: {', '.join(PACKAGED_MODELS)}."
    )


def as_stored(tokenizer: Any) -> StoredTokenizer:
    """The same from what a program has at hand: a name or path, a loaded `tokenizers` one, or one of Transformers.

    Raises: TokenizerError if it is none of these, or a Transformers tokenizer without a fast pipeline.
    """
    if isinstance(tokenizer, StoredTokenizer):
        return tokenizer
    if isinstance(tokenizer, (str, Path)):
        return open_tokenizer(str(tokenizer))
    pipeline = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(pipeline, "to_str"):
        raise TokenizerError(
            f"a {type(tokenizer).__name__} is no tokenizer that can be read. Give a path, a tokenizers.Tokenizer, or a "
            "fast tokenizer of Transformers."
        )
    config = getattr(tokenizer, "init_kwargs", {}) | {name: getattr(tokenizer, name, None) for name in SPECIAL}
    return _stored(
        type(tokenizer).__name__,
        pipeline=json.loads(pipeline.to_str()),
        config=config,
        templates=_named(getattr(tokenizer, "chat_template", None)),
    )


def _of_file(path: Path, *, origin: str) -> StoredTokenizer:
    if is_gguf(path):
        return read_gguf(path, origin=origin)
    if path.suffix == ".gguf":
        raise TokenizerError(f"{path} does not begin as a GGUF file does. Download or convert it again.")
    if path.name == "tokenizer.json":
        return _of_folder(path.parent, origin=origin)
    return _stored(origin, pipeline=_pipeline(path), config={}, templates={})


def _of_folder(folder: Path, *, origin: str) -> StoredTokenizer:
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise TokenizerError(f"{folder} has no tokenizer.json. {_instead(folder)}")
    config = _optional(folder / "tokenizer_config.json")
    config = {**_optional(folder / "special_tokens_map.json"), **config}
    return _stored(origin, pipeline=_pipeline(file), config=config, templates=_templates(folder, config))


def _stored(
    origin: str, *, pipeline: dict[str, Any], config: dict[str, Any], templates: dict[str, str]
) -> StoredTokenizer:
    versions = {
        "format": f"tokenizer.json {pipeline.get('version', 'without a version')}",
        "transformers": config.get("transformers_version"),
    }
    return StoredTokenizer(
        origin=origin,
        format="tokenizer.json",
        pipeline=_with_declared(pipeline, config.get("added_tokens_decoder")),
        special={name: text for name in SPECIAL if (text := _special(origin, name, config.get(name)))},
        templates=templates,
        settings={name: config[name] for name in SETTINGS if config.get(name) is not None},
        versions={name: str(version) for name, version in versions.items() if version is not None},
    )


def _pipeline(path: Path) -> dict[str, Any]:
    content = _json(path)
    if not isinstance(content.get("model"), dict):
        raise TokenizerError(
            f"{path} has no key 'model', so it is no tokenizer.json. Give the file that save_pretrained wrote."
        )
    if not isinstance(content.get("added_tokens") or [], list):
        raise TokenizerError(f"{path} has an 'added_tokens' that is no list. Save the tokenizer again.")
    return content


def _with_declared(pipeline: dict[str, Any], declared: Any) -> dict[str, Any]:
    """The pipeline with the added tokens that only `tokenizer_config.json` has; Transformers adds them on loading."""
    known = pipeline.get("added_tokens") or []
    if not isinstance(declared, dict) or not all(map(_is_added_token, known)):
        return pipeline  # what is malformed is refused when the tokenizer is built
    added = {token["content"]: token for token in known}
    for token_id, token in declared.items():
        if isinstance(token, dict) and isinstance(token.get("content"), str) and str(token_id).isdigit():
            flags = {
                name: bool(token.get(name)) for name in ("single_word", "lstrip", "rstrip", "normalized", "special")
            }
            added[token["content"]] = {"id": int(token_id), "content": token["content"], **flags}
    return {**pipeline, "added_tokens": sorted(added.values(), key=lambda token: int(token["id"]))}


def _is_added_token(token: Any) -> bool:
    """Whether it has what one is sorted and found by."""
    return isinstance(token, dict) and isinstance(token.get("content"), str) and isinstance(token.get("id"), int)


def _templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Name -> source. A file of its own counts more than `tokenizer_config.json`, as in Transformers."""
    found = _named(config.get("chat_template"))
    found |= _named(_optional(folder / "chat_template.json").get("chat_template"))
    files = {"default": folder / "chat_template.jinja"}
    files |= {file.stem: file for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    return found | {name: _content(file).decode("utf-8", "replace") for name, file in files.items() if file.is_file()}


def _named(stored: Any) -> dict[str, str]:
    """A template is stored as a text, a list of names and texts, or a mapping of them."""
    if isinstance(stored, str):
        return {"default": stored}
    if isinstance(stored, list):
        stored = {item.get("name"): item.get("template") for item in stored if isinstance(item, dict)}
    pairs = stored.items() if isinstance(stored, dict) else ()
    return {name: source for name, source in pairs if isinstance(name, str) and isinstance(source, str)}


def _special(origin: str, name: str, token: Any) -> str:
    """A special token is stored as a text, or as a mapping with the text as its content."""
    content = token.get("content") if isinstance(token, dict) else token
    if not isinstance(content, str):
        return ""
    if any("\ud800" <= character <= "\udfff" for character in content):
        raise TokenizerError(f"{origin}: {name} is {content!r}, which no text can hold. Save the tokenizer again.")
    return content


def _optional(path: Path) -> dict[str, Any]:
    return _json(path) if path.is_file() else {}


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_content(path))
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} is not JSON ({error}). {_instead(path.parent)}") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{path} holds a JSON {type(content).__name__}, not an object. {_instead(path.parent)}")
    return content


def _content(path: Path) -> bytes:
    size = path.stat().st_size
    if size > MAX_FILE:
        raise TokenizerError(f"{path} has {size} bytes, more than any tokenizer; at most {MAX_FILE} are read.")
    return path.read_bytes()


def _instead(folder: Path) -> str:
    """What lies there, and what to do."""
    others = [name for name in _OTHER_FORMATS if (folder / name).is_file()]
    if others:
        return (
            f"It has {' and '.join(others)}, which only the model's own code reads: write a tokenizer.json with "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."
        )
    ggufs = sorted(file.name for file in folder.glob("*.gguf"))
    if ggufs:
        return f"It has {ggufs[0]}: give that file."
    found = ", ".join(sorted(entry.name for entry in folder.iterdir())[:10]) or "nothing"
    return f"It holds {found}. Give the folder that save_pretrained wrote."


def _cached(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - only a hub id needs it; `tokenizers` depends on it
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError  # noqa: PLC0415

    try:
        return Path(snapshot_download(hub_id, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError) as error:
        raise TokenizerError(
            f"{hub_id!r} is no folder here, and the local cache of the hub does not have it. "
            f"Download it first (hf download {hub_id}), or give a folder."
        ) from error
