"""Losses against PyTorch's CPU kernels, with their gradients."""

import pytest
import torch
import torch.nn.functional as F

from .harness import check

FLOATS = (torch.float32, torch.float64)
REDUCTIONS = ["none", "mean", "sum"]


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def rand(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape)))


def detached(weight):
    """PyTorch has no gradients for weights of classes or elements."""
    return None if weight is None else weight.detach()


POINTWISE = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth_l1": F.smooth_l1_loss,
    "smooth_l1_beta": lambda x, t, reduction: F.smooth_l1_loss(x, t, reduction=reduction, beta=0.3),
    "huber": F.huber_loss,
    "huber_delta": lambda x, t, reduction: F.huber_loss(x, t, reduction=reduction, delta=0.5),
    "soft_margin": lambda x, t, reduction: F.soft_margin_loss(
        x, t.detach().sign(), reduction=reduction
    ),
    "hinge": lambda x, t, reduction: F.hinge_embedding_loss(x, t.sign(), reduction=reduction),
    "poisson": F.poisson_nll_loss,
    "kl_div": lambda x, t, reduction: F.kl_div(
        F.log_softmax(x, -1), F.softmax(t, -1), reduction=reduction
    ),
    "gaussian": lambda x, t, reduction: F.gaussian_nll_loss(
        x, t, torch.ones_like(x), reduction=reduction
    ),
    "multilabel_soft_margin": lambda x, t, reduction: F.multilabel_soft_margin_loss(
        x, (t > 0).to(x.dtype), reduction=reduction
    ),
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise(name, reduction):
    fn = POINTWISE[name]
    check(
        lambda x, t: fn(x, t, reduction=reduction), randn(4, 5), randn(4, 5, seed=1), dtypes=FLOATS
    )


@pytest.mark.parametrize("name", ["mse", "smooth_l1", "huber", "soft_margin"])
def test_pointwise_narrow(name):
    fn = POINTWISE[name]
    check(
        lambda x, t: fn(x, t, reduction="mean"),
        randn(4, 5),
        randn(4, 5, seed=1),
        dtypes=(torch.bfloat16,),
        rtol=3e-2,
        atol=1e-2,
    )


def test_mse_broadcasts_and_empties():
    check(lambda x, t: torch._C._nn.mse_loss(x, t, 0), randn(4, 1), randn(5))
    check(lambda x, t: torch._C._nn.mse_loss(x, t, 1), randn(4, 1), randn(5))
    for loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.soft_margin_loss):
        check(lambda x, t, loss=loss: loss(x, t.detach()), randn(0, 3), randn(0, 3))
    check(lambda x, t: F.mse_loss(x, t), randn(), randn(seed=3))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_binary_cross_entropy(reduction, weighted):
    weight = rand(5) if weighted else None
    check(
        lambda x, t, w: F.binary_cross_entropy(x.sigmoid(), t, detached(w), reduction=reduction),
        randn(4, 5),
        rand(4, 5),
        weight,
        dtypes=FLOATS,
    )
    check(
        lambda x, t, w: F.binary_cross_entropy_with_logits(
            x, t, detached(w), reduction=reduction, pos_weight=detached(w)
        ),
        randn(4, 5) * 30,
        rand(4, 5),
        weight,
        dtypes=FLOATS,
    )


def test_binary_cross_entropy_at_the_ends():
    x = torch.tensor([0.0, 1.0, 0.5, 0.0, 1.0])
    t = torch.tensor([0.0, 1.0, 1.0, 1.0, 0.0])
    check(lambda x: F.binary_cross_entropy(x, t.to(x.device), reduction="none"), x)


CLASS_SHAPES = [
    ((4, 6), (4,)),
    ((6,), ()),
    ((2, 6, 3), (2, 3)),
    ((2, 6, 3, 4), (2, 3, 4)),
    ((2, 3, 2, 2, 2), (2, 2, 2, 2)),
]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("shape", "target_shape"), CLASS_SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
def test_nll_and_cross_entropy(shape, target_shape, reduction, weighted):
    c = shape[0] if len(shape) == 1 else shape[1]
    target = torch.randint(0, c, target_shape, generator=torch.Generator().manual_seed(1))
    if target.dim():
        target.view(-1)[1] = -100
    weight = rand(c) + 0.1 if weighted else None

    def nll(x, t, w):
        return F.nll_loss(x, t, detached(w), reduction=reduction)

    def cross_entropy(x, t, w):
        return (
            F.cross_entropy(x, t, detached(w), reduction=reduction),
            F.cross_entropy(x, t, detached(w), reduction=reduction, label_smoothing=0.2),
        )

    check(nll, randn(*shape), target, weight, dtypes=FLOATS)
    check(cross_entropy, randn(*shape), target, weight, dtypes=FLOATS)
    check(
        cross_entropy, randn(*shape), target, weight, dtypes=(torch.bfloat16,), rtol=3e-2, atol=3e-2
    )


def test_nll_ignores():
    x, t = randn(4, 6), torch.tensor([1, 2, 2, 5])
    check(lambda x, t: F.nll_loss(x, t, ignore_index=2), x, t)
    check(lambda x, t: F.nll_loss(x, t), x, torch.full((4,), -100))  # 0/0
    check(lambda x, t: F.nll_loss(x, t, reduction="sum"), x, torch.full((4,), -100))
    check(lambda x, t: F.nll_loss(x, t, reduction="none"), x, torch.full((4,), -100))
    check(lambda x, t: F.nll_loss(x, t), x[:0], t[:0])
    x = x.clone()
    x[1, 2] = -torch.inf  # the score of an ignored sample
    check(lambda x, t: F.nll_loss(x, t, ignore_index=2), x, t)
    check(lambda x, t: F.cross_entropy(x, t.to(torch.uint8)), randn(4, 6), t)


def test_cross_entropy_of_probabilities():
    check(
        lambda x, t: F.cross_entropy(x, t.softmax(1), label_smoothing=0.1),
        randn(4, 6),
        randn(4, 6, seed=1),
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_margin_losses(reduction):
    x, t = randn(4, 6), torch.tensor([1, 0, 5, 2])
    w = rand(6)
    for p in (1, 2):
        check(
            lambda x, t, p=p: F.multi_margin_loss(x, t, p=p, margin=0.7, reduction=reduction), x, t
        )
    check(
        lambda x, t, w: F.multi_margin_loss(x, t, weight=w.detach(), reduction=reduction), x, t, w
    )
    check(lambda x, t: F.multi_margin_loss(x, t, reduction=reduction), x[0], t[0])
    labels = torch.tensor(
        [[0, 3, -1, 1, -1, -1], [5, -1, -1, -1, -1, -1], [-1] * 6, [0, 1, 2, 3, 4, 5]]
    )
    check(
        lambda x, t: F.multilabel_margin_loss(x, t, reduction=reduction), x, labels, dtypes=FLOATS
    )
    check(lambda x, t: F.multilabel_margin_loss(x, t, reduction=reduction), x[0], labels[0])


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_embedding_losses(reduction):
    a, b, c = randn(4, 6), randn(4, 6, seed=1), randn(4, 6, seed=2)
    y = torch.tensor([1.0, -1.0, 1.0, -1.0])
    check(lambda a, b, y: F.cosine_embedding_loss(a, b, y, reduction=reduction), a, b, y)
    check(lambda a, b, c: F.triplet_margin_loss(a, b, c, reduction=reduction), a, b, c)
    check(lambda a, b, y: F.margin_ranking_loss(a[:, 0], b[:, 0], y, reduction=reduction), a, b, y)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_ctc(reduction):
    log_probs = randn(12, 3, 5).log_softmax(-1)
    targets = torch.tensor([[1, 2, 2, 4], [3, 1, 0, 0], [4, 4, 4, 0]])
    lengths = torch.tensor([12, 10, 8]), torch.tensor([4, 2, 3])
    check(lambda x, t: F.ctc_loss(x, t, *lengths, reduction=reduction), log_probs, targets)
