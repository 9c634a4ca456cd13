"""What of TRL's trainers has no reference to guard; real trainings are in tests/real/test_trl_reference.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from onepolicy.errors import UsageError
from onepolicy.integrations.trl.reference import guard_reference


class Tiny(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(16, 16)

    def get_input_embeddings(self) -> torch.nn.Embedding:
        return self.table


def score(model: Tiny, ids: torch.Tensor, mask: torch.Tensor, kept: int) -> tuple[torch.Tensor, None, None]:
    """As TRL's function: logprobs of the last `kept` tokens."""
    logprobs = model.table(ids[:, :-1]).log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    return logprobs[:, -kept:], None, None


def trainer(**changes: Any) -> Any:
    fields: dict[str, Any] = {
        "args": SimpleNamespace(beta=0.1, sync_ref_model=False),
        "model": Tiny(),
        "ref_model": Tiny(),
        "accelerator": SimpleNamespace(unwrap_model=lambda model: model),
        "state": SimpleNamespace(global_step=0),
        "add_callback": lambda callback: None,
        "_get_per_token_logps_and_entropies": score,
        "_generate_and_score_completions": lambda inputs: {},
    }
    return SimpleNamespace(**{**fields, **changes})


def test_a_trainer_with_a_reference_is_guarded_and_only_once(tmp_path):
    one = trainer()
    guard = guard_reference(one, tmp_path)
    assert guard.alarms == ()
    with pytest.raises(UsageError, match="guarded already"):
        guard_reference(one, tmp_path)


def test_a_generation_whose_pass_is_another_models_is_seen_and_evaluation_is_not_looked_at(tmp_path):
    one, ids = trainer(), torch.arange(1, 13).view(2, 6)
    other = Tiny()
    with torch.no_grad():
        other.table.weight.add_(torch.eye(16))
    one._generate_and_score_completions = lambda inputs: one._get_per_token_logps_and_entropies(
        inputs, ids, torch.ones_like(ids), 3
    )
    guard = guard_reference(one, tmp_path)
    one.model.eval()
    one._generate_and_score_completions(other)
    one.model.train()
    one._generate_and_score_completions(one.ref_model)
    assert guard.alarms == ()
    one._generate_and_score_completions(other)
    assert [alarm.kind for alarm in guard.alarms] == ["pass"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (SimpleNamespace(), "give a GRPOTrainer"),
        (trainer(args=SimpleNamespace(beta=0.0)), "beta=0.0 uses no reference"),
        (trainer(args=SimpleNamespace(beta=0.1, sync_ref_model=True)), "sync_ref_model=False"),
        (trainer(ref_model=None), "keeps no reference model here"),
    ],
)
def test_a_training_without_a_frozen_reference_is_refused(tmp_path, given, words):
    with pytest.raises(UsageError, match=words):
        guard_reference(given, tmp_path)
    assert list(tmp_path.iterdir()) == []
