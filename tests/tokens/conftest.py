"""Small tokenizers that are built here, files that hold them, and where the real ones lie."""

import json
import struct
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from onepolicy.records.rollout import Rollout

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level(merges, letters=LETTERS):
    pieces = [*letters, *("".join(merge) for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


@pytest.fixture
def tokenizer():
    return byte_level([("t", "h"), ("th", "e")])


@pytest.fixture
def other_tokenizer():
    """The same ids mean other bytes."""
    return byte_level([("t", "h"), ("th", "e")], LETTERS[1:] + LETTERS[:1])


@pytest.fixture
def completed(tokenizer):
    """A rollout whose completion is these pieces of the vocabulary, after a prompt of three tokens."""

    def build(*pieces, text=None, name="r-1", prompt=3):
        ids = [tokenizer.token_to_id(piece) for piece in pieces]
        decoded = tokenizer.decode(ids, skip_special_tokens=False) if text is None else text
        sampled = np.arange(prompt + len(ids)) >= prompt
        return Rollout(
            rollout_id=name,
            prompt_id=f"of {name}",
            trajectory_id=name,
            token_ids=np.array([0] * prompt + ids, dtype=np.int32),
            sampled=sampled,
            loss_mask=sampled,
            text=decoded,
        )

    return build


CORPUS = (
    "the quick brown fox jumps over the lazy dog and the hen. It is 2024, 12 345 and 67890 of 1999.",
    "def f(x):\n    return x + 1\n\nfor i in range(10):\n    print(i)",
    "你好，世界。今天天气很好。안녕하세요 세계 こんにちは世界 مرحبا Привет мир",
    "search for the answer, then search again;  two  spaces,   three   spaces and \t tabs",
    "naïve café über straße 😀 👍🏽 it's I'm you're they'll",
)


def _trained(pre_tokenizer=None, vocab_size=420):
    built = Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<s>", "</s>", "<|im_end|>"],
        initial_alphabet=LETTERS,
        show_progress=False,
    )
    built.train_from_iterator(CORPUS * 3, trainer)
    return built


@pytest.fixture(scope="session")
def trained():
    """Trains a byte-level BPE tokenizer with about 160 merges; the same arguments give the same one."""
    return _trained


def _sentence_piece():
    """A vocabulary with scores, 256 byte pieces and a marker for spaces, as SentencePiece has it."""
    learnt = Tokenizer(models.BPE(unk_token="<unk>"))
    learnt.normalizer = normalizers.Replace(" ", "▁")
    learnt.train_from_iterator(
        CORPUS * 3, trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"], show_progress=False)
    )
    pieces = [piece for piece, _ in sorted(learnt.get_vocab().items(), key=lambda item: item[1]) if piece != "<unk>"]
    control = ["<unk>", "<s>", "</s>"]
    byte = [f"<0x{i:02X}>" for i in range(256)]
    return {
        "model": "llama",
        "tokens": [*control, *byte, *pieces, "<think>"],
        "token_type": [2, 3, 3, *[6] * 256, *[1] * len(pieces), 4],
        "scores": [0.0] * 259 + [-float(i) for i in range(len(pieces))] + [0.0],
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


@pytest.fixture(scope="session")
def sentence_piece():
    """The `tokenizer.ggml` entries of a SentencePiece-like vocabulary."""
    return _sentence_piece()


@pytest.fixture(scope="session")
def byte_level_entries():
    """The `tokenizer.ggml` entries that a converter writes for a byte-level tokenizer."""

    def entries(tokenizer, pre="gpt-2", **others):
        model = json.loads(tokenizer.to_str())["model"]
        added = tokenizer.get_added_tokens_decoder()
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        tokens = sorted(vocabulary, key=vocabulary.get)
        return {
            "model": "gpt2",
            "pre": pre,
            "tokens": tokens,
            "token_type": [(3 if added[i].special else 4) if i in added else 1 for i in range(len(tokens))],
            "merges": [" ".join(merge) for merge in model["merges"]],
            **others,
        }

    return entries


@pytest.fixture
def saved(tmp_path):
    """Writes a tokenizer and its configuration into a folder of this name."""

    def save(tokenizer, name="model", files=(), **config):
        folder = tmp_path / name
        folder.mkdir()
        stored = tokenizer if isinstance(tokenizer, dict) else json.loads(tokenizer.to_str())
        (folder / "tokenizer.json").write_text(json.dumps(stored))
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        for file, content in dict(files).items():
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_text(content)
        return folder

    return save


def _gguf_value(value):
    """Type and bytes of a metadata value, as the specification says; shares no code with the reader."""
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, struct.pack("<Q", len(value.encode())) + value.encode()
    kind = _gguf_value(value[0])[0] if value else 8
    return 9, struct.pack("<IQ", kind, len(value)) + b"".join(_gguf_value(item)[1] for item in value)


@pytest.fixture(scope="session")
def gguf_bytes():
    """The bytes of a GGUF file without tensors that holds this metadata."""

    def build(metadata, version=3, count=None):
        entries = b""
        for key, value in metadata.items():
            kind, content = _gguf_value(value)
            entries += struct.pack("<Q", len(key.encode())) + key.encode() + struct.pack("<I", kind) + content
        count = len(metadata) if count is None else count
        return b"GGUF" + struct.pack("<IQQ", version, 0, count) + entries

    return build


@pytest.fixture
def gguf(tmp_path, gguf_bytes):
    """Writes a GGUF file with these `tokenizer.ggml` entries, and others by their full name."""

    def write(entries, name="model.gguf", **whole):
        metadata = {"general.architecture": "llama", **{f"tokenizer.ggml.{k}": v for k, v in entries.items()}, **whole}
        (tmp_path / name).write_bytes(gguf_bytes(metadata))
        return tmp_path / name

    return write


@pytest.fixture(scope="session")
def real_tokenizers():
    """Name -> what `open_tokenizer` takes: tokenizers of real models."""
    fetched = Path(__file__).parents[2] / ".tokenizers"
    assert (fetched / ".ready").is_file(), "run: make .tokenizers/.ready"
    module = import_module("onepolicy.integrations.transformers.target")  # only these tests need torch
    names = ("deepseek", "qwen3", "llama3_1", "gemma3")
    return {"smollm2": str(module.model_folder("smollm2")), **{name: str(fetched / name) for name in names}}
