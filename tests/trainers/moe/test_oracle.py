"""The layer and the decoupled optimizer on several ranks against one process with whole experts and plain loops."""

import pytest
import torch

from tests.how_much import LONG
from tests.trainers.moe.toy_net import Run, case
from tests.trainers.moe.toy_reference import Reference

TAKES_MINUTES = pytest.mark.skipif(not LONG, reason="make test-long runs it")


def trained(group, case):
    """A run of all steps: for each, everything that the reference computes too, gathered on all ranks."""
    run = Run(case, group)
    seen = []
    for step in range(case["steps"]):
        before = state(run)
        outputs = run.accumulate(step)
        gradients = {}
        for part in (run.dense, *run.experts):
            collected = part.shards.collect(part.gradients(), part.hosts)
            gradients |= dict(zip(part.shards.slices, part.shards.parts(collected), strict=True))
        replicas = [layer.placement.replicas for layer in run.net.layers]
        group.meter.take()
        outcome, counts = run.finish(step)
        seen.append(
            {
                "before": before, "outputs": outputs, "gradients": run.whole(gradients), "after": state(run),
                "replicas": replicas, "norm": outcome.norm, "scale": outcome.scale,
                "counts": [c.tolist() for c, _ in counts], "kept": [k.tolist() for _, k in counts],
                "bias": [layer.router.bias.clone() for layer in run.net.layers],
            }
        )  # fmt: skip
    return seen


def state(run):
    """Master weights and moments, whole, by name."""
    slices = [part for every in (run.dense, *run.experts) for part in every.shards.slices]
    moments = run.optimizer.inner.state
    kinds = [{part: moments[part][kind] for part in slices} for kind in ("exp_avg", "exp_avg_sq")]
    return [run.whole(values) for values in ({part: part.detach() for part in slices}, *kinds)]


def compared(crew, case, ranks, forced=False):
    """The largest differences over all steps from the reference; counts, drops and placements must be the same."""
    answers = crew.run(trained, case, ranks=ranks)
    first = answers[0][0]["before"][0]
    reference = Reference(case, ranks, first)
    worst = {"outputs": 0.0, "gradients": 0.0, "weights": 0.0, "moments": 0.0}
    ulps, dropped, placements = 0.0, 0, set()
    for step in range(case["steps"]):
        seen = answers[0][step]
        if forced:
            reference.weights = {name: v.clone() for name, v in seen["before"][0].items()}
            reference.moments = {name: (seen["before"][1][name], seen["before"][2][name]) for name in first}
        assert seen["replicas"] == [tuple(r) for r in reference.replicas]
        found = reference.step(step)
        assert seen["counts"] == reference.counts
        assert seen["kept"] == reference.kept
        dropped += sum(map(sum, reference.counts)) - sum(map(sum, reference.kept))
        placements.update(map(tuple, seen["replicas"]))
        for bias, other in zip(seen["bias"], reference.bias, strict=True):
            assert torch.allclose(bias, other, atol=1e-6)
        for rank in range(ranks):
            assert torch.equal(answers[rank][step]["after"][0]["experts1"], seen["after"][0]["experts1"])
            worst["outputs"] = max(worst["outputs"], off(answers[rank][step]["outputs"], found["outputs"][rank]))
            if forced:
                ulps = max(ulps, ulps_apart(answers[rank][step]["outputs"], found["outputs"][rank], 2**-7))
        assert abs(seen["norm"] - found["norm"]) <= 1e-2 * found["norm"]
        for name in first:
            worst["gradients"] = max(worst["gradients"], off(seen["gradients"][name], found["gradients"][name]))
            worst["weights"] = max(worst["weights"], off(seen["after"][0][name], reference.weights[name]))
            for at in (0, 1):
                worst["moments"] = max(worst["moments"], off(seen["after"][at + 1][name], reference.moments[name][at]))
            if forced:
                change = reference.optimizer.rate  # what a step may change a weight by
                ulps = max(ulps, ulps_apart(seen["after"][0][name], reference.weights[name], change))
    return worst, dropped, placements, ulps


def off(a, b):
    return float((a.double() - b.double()).abs().max()) if a.numel() else 0.0


def ulps_apart(a, b, least):
    """How far roundings to bfloat16 lie apart, in units of its last place; of numbers near zero, that of ``least``."""
    a, b = a.to(torch.bfloat16).double(), b.to(torch.bfloat16).double()
    place = torch.exp2(torch.floor(torch.log2(torch.maximum(a.abs(), b.abs()).clamp(min=least))) - 7)
    return float(((a - b).abs() / place).max()) if a.numel() else 0.0


CASES = {
    "uneven replicas, drops, top-2, all losses": case(
        options={"top_k": 2, "z_loss": 0.01, "bias_rate": 0.02, "aux_loss": 0.02, "rates": (1, 0.5, 1, 1, 2, 1),
                 "decays": (0, 1, 1, 1, 1, 3)}
    ),
    "sigmoid, renormalized, micro-batches, least likely dropped": case(
        options={"top_k": 2, "score": "sigmoid", "renormalize_gates": True, "drop": "probability"}, accumulate=2
    ),
    "nothing dropped, a rank without tokens": case(options={"capacity": 0.0}, tokens=[9, 0, 13, 4]),
    "several replicas on a rank, five experts": case(
        experts=5, slots=8, options={"capacity": 0.5, "rule": "paper"}, optimizer={"skip_inactive": True}
    ),
}  # fmt: skip


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        *(pytest.param(name, 4, marks=TAKES_MINUTES if number else ()) for number, name in enumerate(CASES)),
        *((name, 2) for name in list(CASES)[:2]),
    ],
)
def test_training_is_that_of_one_process_in_float64(crew, name, ranks):
    chosen = CASES[name] | {"slots": CASES[name]["slots"] * 4 // ranks}
    worst, dropped, placements, _ = compared(crew, chosen, ranks)
    assert max(worst.values()) < 1e-10, worst
    assert len(placements) > 5
    assert (dropped > 0) == (CASES[name]["options"].get("capacity") != 0.0)


@pytest.mark.heavy
def test_training_is_that_of_one_process_in_float32(crew):
    worst, *_ = compared(crew, CASES["uneven replicas, drops, top-2, all losses"] | {"dtype": "float32"}, 4)
    assert max(worst.values()) < 1e-5, worst


@pytest.mark.heavy
def test_each_step_in_bfloat16_is_that_of_one_process(crew):
    chosen = CASES["uneven replicas, drops, top-2, all losses"] | {"dtype": "bfloat16", "optimizer": {"rate": 1e-4}}
    worst, dropped, placements, ulps = compared(crew, chosen, 4, forced=True)
    assert ulps <= 2, (ulps, worst)
    assert dropped
    assert len(placements) > 5
