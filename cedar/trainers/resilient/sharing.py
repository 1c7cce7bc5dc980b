"""Inspect stages before workers start: find shared parameters, and reject what cannot be trained in a pipeline."""

from __future__ import annotations

import multiprocessing
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.optim.swa_utils import AveragedModel

from cedar.core.errors import CedarError
from cedar.trainers.common import launch
from cedar.trainers.moe.layer import mixtures
from cedar.trainers.resilient.model.torch_optimizer import TorchOptimizer

if TYPE_CHECKING:
    from cedar.trainers.resilient.pipeline import ResilientPipeline

_UNCHANGED = "nothing was started"


@dataclass(frozen=True)
class Sharing:
    """The parameters that several stages share. Each is trained as a single parameter."""

    stages: tuple[int, ...] = ()  # the stages that have the shared parameters
    # for each of these stages, a mapping from its own parameter names to common names, in the same order
    names: Mapping[int, Mapping[str, str]] = field(default_factory=dict)


@dataclass
class _Parameter:
    """A parameter, and all stages and names under which it was found."""

    ref: weakref.ref[nn.Parameter]
    places: list[tuple[int, str]]  # stage, name


def find_sharing(pipeline: ResilientPipeline) -> Sharing:
    """Build the stages one by one, reject what cannot be trained, and compare their parameters by identity.

    Functions that build stages are called in a separate process, so that they do not change this one.

    Raises:
        CedarError: a stage cannot be trained, no parameter is trainable, or stages share in an unsupported way.
    """
    _check_settings(pipeline)
    if all(isinstance(stage, nn.Module) for stage in pipeline.stages):
        return _find_shared(pipeline)
    sharing: Sharing = ask_process(
        lambda: _find_shared(pipeline), pipeline.run.threads, "the process that inspects the stages died"
    )
    return sharing


def _check_settings(pipeline: ResilientPipeline) -> None:
    """Reject optimizers and autocast contexts of the caller, which workers cannot use."""
    chosen = pipeline.optimizer
    if isinstance(chosen, (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)):
        raise CedarError(
            f"optimizer is a {type(chosen).__module__}.{type(chosen).__qualname__}, which workers cannot use",
            done=_UNCHANGED, fix="give AdamWOptions, or a TorchOptimizer, which makes one on each worker",
        )  # fmt: skip
    if isinstance(chosen, TorchOptimizer):
        ask_process(lambda: chosen.kept, pipeline.run.threads, "the process that looks at the optimizer died")
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise CedarError(
            "torch.autocast is on around train()", done=_UNCHANGED, fix="use it in the forward() of each stage"
        )


def _find_shared(pipeline: ResilientPipeline) -> Sharing:
    seen: dict[int, _Parameter] = {}
    every: list[_Parameter] = []
    values: list[torch.Tensor] = []  # values of the parameter ``tied`` at the first stage that has it
    ends, trained = [(stage, pipeline.tied) for stage in (0, len(pipeline.stages) - 1)], False
    for stage in range(len(pipeline.stages)):
        module = pipeline.module(stage)
        check_module(module, stage)
        trained = trained or any(p.requires_grad for p in module.parameters())
        for name, parameter in module.named_parameters():
            if (stage, name) in ends and pipeline.tied is not None:
                values = values or [parameter.detach().clone()]
                _check_equal(pipeline.tied, values[0], parameter)
            if not parameter.requires_grad or not parameter.numel():
                continue
            known = seen.get(parameter.data_ptr())
            before = None if known is None else known.ref()
            if known is None or before is None:  # this memory is new, or was freed and reused
                known = seen[parameter.data_ptr()] = _Parameter(weakref.ref(parameter), [])
                every.append(known)
            elif before is not parameter:
                others = " and ".join(f"{name!r} of stage {stage}" for stage, name in [*known.places, (stage, name)])
                raise CedarError(
                    f"{others} are two parameters in the same memory", done=_UNCHANGED,
                    fix="let both modules hold the same nn.Parameter, which is then trained as one",
                )  # fmt: skip
            known.places.append((stage, name))
    if not trained:
        raise CedarError(
            "no stage has a parameter that requires a gradient", done=_UNCHANGED, fix="call requires_grad_() on some"
        )
    shared = [dict(reversed(one.places)) for one in every if len({stage for stage, _ in one.places}) > 1]
    if pipeline.tied is not None and len(pipeline.stages) > 1 and dict(ends) not in shared:
        shared.insert(0, {stage: str(name) for stage, name in ends})
    return _name_shared(shared, "" if pipeline.named else "{}.")


def _name_shared(shared: list[dict[int, str]], prefix: str) -> Sharing:
    """Choose common names for shared parameters. ``shared``: for each parameter, its name at each stage that has it."""
    groups = {tuple(sorted(places)): places for places in shared}
    if len(groups) > 1:
        reported = "; ".join(
            f"stages {', '.join(map(str, stages))} share {places[stages[0]]!r}" for stages, places in groups.items()
        )
        raise CedarError(
            f"different stages share different parameters: {reported}", done=_UNCHANGED,
            fix="split the model so that the same stages share every shared parameter",
        )  # fmt: skip
    if not groups:
        return Sharing()
    (stages,) = groups
    common = [prefix.format(stages[0]) + places[stages[0]] for places in shared]
    names = {at: {places[at]: name for places, name in zip(shared, common, strict=True)} for at in stages}
    return Sharing(stages, names)


def _check_equal(name: str, one: torch.Tensor, other: torch.Tensor) -> None:
    if one.shape != other.shape or not torch.equal(one, other.detach()):
        raise CedarError(
            f"tied={name!r}: the first and the last stage begin with different values of it", done=_UNCHANGED,
            fix="give both stages the same parameter, or copy its values from one to the other",
        )  # fmt: skip


def check_module(module: nn.Module, stage: int) -> None:
    """Reject a stage that cannot be trained.

    Raises:
        CedarError: the message names the problem and a fix.
    """
    for problem, fix in _problems(module):
        raise CedarError(f"stage {stage} {problem}", done=_UNCHANGED, fix=fix)


def _problems(module: nn.Module) -> Iterator[tuple[str, str]]:
    parameters = dict(module.named_parameters())
    kinds = {str(p.dtype) for p in parameters.values() if p.is_floating_point()}
    for name, parameter in parameters.items():
        if isinstance(parameter, UninitializedParameter):
            yield f"has not initialized {name!r} yet", "compute one batch with it first"
        elif parameter.device.type == "meta":
            yield f"has no values in {name!r}, which is on the meta device", "give a function that makes the stage"
        elif parameter.device.type != "cpu":
            yield (
                f"has {name!r} on {parameter.device}, which the workers that are forked here cannot use",
                "leave the stages on the CPU, and set run.device: each worker moves its own stage",
            )
    if len(kinds) > 1:
        yield (
            f"has parameters of {' and '.join(sorted(kinds))}, and run.dtype is one for all",
            "give all of them one dtype, and use torch.autocast in its forward()",
        )
    if any(isinstance(part, AveragedModel) for part in module.modules()):
        yield "holds an AveragedModel, which is not trained", "train the model, and average its checkpoints"
    if any(layer.group.size > 1 or layer.bias_rate for layer in mixtures(module)):
        yield (
            "has a SymiMoE whose experts are on several ranks, or whose bias moves with each step",
            "make it with group=None and bias_rate=0: each worker of the stage holds all its experts",
        )


def ask_process(work: Callable[[], Any], threads: int, died: str) -> Any:
    """Run ``work`` in a forked process, and return its result.

    Args:
        threads: number of torch threads in that process.
        died: error message if the process ends without a result.

    Raises:
        CedarError: ``work`` raised it, or the process died.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_result, args=(work, threads, sender, os.getpid()), daemon=True)
    process.start()
    sender.close()
    try:
        answer = receiver.recv()
    except EOFError:
        answer = CedarError(died, fix="see its output above")
    process.join()
    if isinstance(answer, CedarError):
        raise answer
    return answer


def _send_result(work: Callable[[], Any], threads: int, to: Any, parent: int) -> None:
    launch.end_with(parent)
    torch.set_num_threads(threads)
    try:
        to.send(work())
    except CedarError as error:
        to.send(error)
