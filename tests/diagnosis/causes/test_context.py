"""One side reads another beginning: a BOS more or less, or no system turn."""

import leg_models
import pytest
import transformers
from leg_models import END, WIDTH, saved
from planted_runs import names, served_by, why

pytestmark = pytest.mark.usefixtures("causes_of_engines")

BOS = 1
SYSTEM = "\x01You are kind and say little.\n\x01"


@pytest.fixture(scope="module")
def with_bos(tmp_path_factory):
    """A Llama whose tokenizer puts a BOS in front of a text."""
    config = transformers.LlamaConfig(
        vocab_size=leg_models.VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=leg_models.LONGEST,
        initializer_range=0.4,
        eos_token_id=END,
        bos_token_id=leg_models.VOCABULARY - 1,
    )
    folder = saved(transformers.LlamaForCausalLM, config, tmp_path_factory.mktemp("bos") / "model")
    fast = transformers.AutoTokenizer.from_pretrained(folder)
    fast.add_special_tokens({"bos_token": "<s>"})
    fast.chat_template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    fast.save_pretrained(folder)
    return folder, fast.convert_tokens_to_ids("<s>")


def reading_otherwise(folder, model, edit):
    """The spec of an engine that changes the ids before it reads them; `edit` is Python of `one`."""
    file = folder / "served.py"
    file.write_text(
        "from leg_faults import loaded, right_way\n\n"
        f"MODEL = loaded({str(model)!r})\n\n\n"
        "def score(token_ids):\n"
        f"    edited = [{edit} for one in token_ids]\n"
        "    found = right_way(MODEL, edited)\n"
        "    return [([0.0] * len(one) + row)[-len(one):] for one, row in zip(token_ids, found)]\n"
    )
    return f"callable:{file}:score"


@pytest.mark.parametrize(
    ("edit", "said"),
    [("[{bos}] + one", "a second BOS"), ("one[1:]", "without the BOS")],
    ids=["doubled", "missing"],
)
def test_a_bos_too_many_and_one_too_few_are_told_apart(tmp_path, with_bos, edit, said):
    model, bos = with_bos
    plain = f"transformers:{model}"
    served = reading_otherwise(tmp_path, model, edit.format(bos=bos))
    found = why(served_by(tmp_path / "run", plain, served, plain, before=SYSTEM), served=True)
    assert names(found) == [("special tokens", "cause")], found.sentence
    assert said in found.sentence


def test_a_system_turn_that_one_side_drops_is_told_from_a_missing_bos(tmp_path, with_bos):
    model, _ = with_bos
    plain = f"transformers:{model}"
    served = reading_otherwise(tmp_path, model, f"one[:1] + one[1 + {len(SYSTEM) - 1}:]")
    found = why(served_by(tmp_path / "run", plain, served, plain, before=SYSTEM), served=True)
    assert names(found) == [("template", "cause")], found.sentence
    assert "without its first 30 ids" in found.sentence
