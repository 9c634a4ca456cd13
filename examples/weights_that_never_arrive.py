"""Train, get blocked, read why, fix, pass: here the sampler is never sent the new weights. Ten seconds on a laptop.

pip install 'onepolicy[demo]' && python examples/weights_that_never_arrive.py
"""

# ruff: noqa: T201 - it tells a story

import json
from pathlib import Path
from tempfile import mkdtemp

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import onepolicy
from onepolicy.integrations.transformers.tiny import llama

torch.set_num_threads(1)  # several take longer for a model as small as this one
WORK, PROMPTS, LENGTH = Path(mkdtemp()), [f"Count to {number}: " for number in range(10, 34)], 24
BASE = llama(WORK / "step-0")  # two layers of random weights, and a token for each byte
TOKENIZER = AutoTokenizer.from_pretrained(BASE)
LINES = [json.dumps({"id": prompt, "messages": [{"role": "user", "content": prompt}]}) for prompt in PROMPTS]
(WORK / "suite.jsonl").write_text("\n".join(LINES))


def train(sampler, policy, monitor: onepolicy.Monitor, *, send_weights: bool) -> None:
    """REINFORCE for low token ids, for 12 steps or until the monitor ends it."""
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    asked = TOKENIZER(PROMPTS, return_tensors="pt") | {"do_sample": True, "top_k": 0, "max_new_tokens": LENGTH}
    for _ in range(12):
        out = sampler.generate(**asked, output_scores=True, return_dict_in_generate=True)
        ids = out.sequences[:, -LENGTH:]
        sampled = sampler.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
        logits = policy(out.sequences).logits[:, -LENGTH - 1 : -1]
        scored = logits.log_softmax(-1).gather(2, ids[..., None])[..., 0]
        monitor.update(rollout_logprobs=sampled, trainer_logprobs=scored, sampled=ids >= 0, token_ids=ids)
        reward = (ids < 100).float().mean(dim=1)
        (-scored.mean(dim=1) * (reward - reward.mean())).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if send_weights:  # the line that is so easily lost
            sampler.load_state_dict(policy.state_dict())
        monitor.step()


for name, send_weights in (("blocked", False), ("fixed", True)):
    print(f"\n== {name}: the new weights are {'sent' if send_weights else 'not sent'} to the sampler")
    sides = {side: AutoModelForCausalLM.from_pretrained(BASE, eos_token_id=None) for side in ("sampler", "policy")}
    try:
        with onepolicy.Monitor(WORK / name / "monitor", policy="halt", limits="bf16") as monitor:
            train(*sides.values(), monitor, send_weights=send_weights)
    except onepolicy.TrainingHalted as halted:
        print(halted)
    for side, model in sides.items():
        model.save_pretrained(WORK / name / side)
        TOKENIZER.save_pretrained(WORK / name / side)
    judgement = onepolicy.check(
        rollout=f"transformers:{WORK / name / 'sampler'}",
        trainer=f"transformers:{WORK / name / 'policy'}",
        weights={"step 0": f"transformers:{BASE}"},
        suite=str(WORK / "suite.jsonl"),
        protocol=onepolicy.SamplingProtocol(max_new_tokens=LENGTH),
        run=WORK / f"check-{name}",
    )
    print(judgement.sentence)
    if judgement.status is onepolicy.Status.FAIL:
        print(onepolicy.Run.open(Path(judgement.run)).diagnosis("default").sentence)
