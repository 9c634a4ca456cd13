"""One line that attaches the monitor to verl's trainers, without a change to verl.

The newer trainer (`trainer.use_v1=True`, verl's default) keeps a batch in a queue: `_compute_advantage` is the last
that changes its masks, and `step`, which is given the metrics that verl logs, ends it. In the older one
`_compute_old_log_prob` is the last before rollout correction, and `_update_actor`, whose metrics verl logs, the last
before the update.

Methods of the class are wrapped, so that it works wherever verl makes the trainer: in a process of Ray's. The folder is
opened when `fit` begins.

Source: verl-project/verl:verl/trainer/ppo/v1/trainer_base.py, verl/trainer/ppo/ray_trainer.py (0.9.1).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepolicy.errors import UsageError
from onepolicy.integrations.verl.hook import VerlHook
from onepolicy.integrations.verl.needs import check, settings_of
from onepolicy.integrations.verl.queue import Queued

if TYPE_CHECKING:
    from onepolicy.judgement.limits import Limits
    from onepolicy.monitor.monitor import Policy

MARK = "_onepolicy_monitored"
HOOK = "_onepolicy_hook"
QUEUED = ("fit", "step", "_compute_advantage")
IN_MEMORY = ("fit", "_compute_old_log_prob", "_update_actor")


def attach(
    trainer_class: type[Any],
    path: str | Path,
    *,
    policy: Policy = "warn",
    limits: Limits | str | Path = "bf16",
    dump: str | Path | None = None,
    check_every: int = 10,
) -> None:
    """Attach a monitor to a trainer's class, before `fit`: it opens when the training begins and closes with it.

    trainer_class: `PPOTrainerSync` or another of verl's `trainer/ppo/v1`, or `RayPPOTrainer`. path, policy, limits,
    dump: as of `VerlHook`; give absolute paths, as Ray's processes may run elsewhere. check_every: steps between two
    checks of the training signal; 0 for none.
    Raises: UsageError if the class has not the methods of verl's 0.9, or has a monitor already. `fit` raises it if the
    configuration leaves nothing to compare.
    """
    methods = _methods_of(trainer_class)

    def opened(trainer: Any) -> VerlHook:
        check(trainer.config)
        settings = settings_of(trainer, every=check_every)
        return VerlHook(path, policy=policy, limits=limits, dump=dump, signal=settings.signal, about=settings.about)

    _wrap(trainer_class, "fit", functools.partial(_fit, opened))
    wrappers: tuple[Callable[..., Any], ...] = (
        (_step, _queued_advantage) if methods is QUEUED else (_old_log_prob, _update_actor)
    )
    for name, wrapper in zip(methods[1:], wrappers, strict=True):
        _wrap(trainer_class, name, wrapper)
    setattr(trainer_class, MARK, True)


def _methods_of(trainer_class: type[Any]) -> tuple[str, ...]:
    if getattr(trainer_class, MARK, False):
        raise UsageError(f"{trainer_class.__name__} has a monitor already; attach one, once.")
    for methods in (QUEUED, IN_MEMORY):
        if all(callable(getattr(trainer_class, name, None)) for name in methods):
            return methods
    raise UsageError(
        f"{getattr(trainer_class, '__name__', trainer_class)} is no trainer of verl's 0.9: it lacks "
        f"{', '.join(QUEUED)} as well as {', '.join(IN_MEMORY)}. Call `VerlHook.step` in your own loop instead "
        "(docs/verl.md)."
    )


def _wrap(trainer_class: type[Any], name: str, wrapper: Callable[..., Any]) -> None:
    method = getattr(trainer_class, name)

    @functools.wraps(method)
    def wrapped(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(functools.partial(method, trainer), trainer, *args, **kwargs)

    setattr(trainer_class, name, wrapped)


def _fit(opened: Callable[[Any], VerlHook], fit: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
    with opened(trainer) as hook:
        setattr(trainer, HOOK, hook)
        return fit(*args, **kwargs)


def _queued_advantage(compute: Callable[..., Any], trainer: Any, batch: Any, metrics: dict[str, Any]) -> Any:
    queued = Queued.before_correction(batch)
    found = compute(batch, metrics)
    hook: VerlHook = getattr(trainer, HOOK)
    queued.put(hook.take(queued.rows(), int(trainer.global_steps)))
    return found


def _step(step: Callable[..., Any], trainer: Any, metrics: dict[str, Any], *args: Any) -> Any:
    batch = step(metrics, *args)
    hook: VerlHook = getattr(trainer, HOOK)
    metrics.update(hook.ended(int(trainer.global_steps)))
    return batch


def _old_log_prob(compute: Callable[..., Any], trainer: Any, batch: Any) -> Any:
    getattr(trainer, HOOK).scored(batch)
    return compute(batch)


def _update_actor(update: Callable[..., Any], trainer: Any, batch: Any) -> Any:
    hook: VerlHook = getattr(trainer, HOOK)
    numbers = hook.step(batch, int(trainer.global_steps))
    output = update(batch)
    output.meta_info["metrics"] |= numbers
    return output
