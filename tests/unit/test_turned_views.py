"""Tensors that are turned in place (`t_`, `squeeze_`) after views of them were taken, or that are
such views: what is written through them, and the gradients of all."""

import pytest
import torch

import torch_xla  # noqa: F401

TURNS = {
    "t_": lambda v: v.t_(),
    "transpose_": lambda v: v.transpose_(0, 1),
    "swapdims_": lambda v: v.swapdims_(0, 1),
    "unsqueeze_": lambda v: v.unsqueeze_(0),
    "squeeze_": lambda v: v.squeeze_(),
    "squeeze_ of the last": lambda v: v.squeeze_(-1),
    "squeeze_ of two": lambda v: torch.ops.aten.squeeze_.dims(v, (0, -1)),
    "as_strided_": lambda v: v.as_strided_((3, 3), (1, 3), 0),
    "as_strided_ of a part": lambda v: v.as_strided_((2, 2), (1, 3), 1),
    "two": lambda v: v.t_().unsqueeze_(1),
}
VIEWS = {
    "slice": lambda t: t[:],
    "permute": lambda t: t.permute(1, 0),
    "view": lambda t: t.view(3, 3),
    "unsqueeze": lambda t: t.unsqueeze(-1),
    "squeeze": lambda t: t.squeeze(),
    "diagonal": lambda t: t.diagonal(),
    "unfold": lambda t: t.unfold(0, 1, 2),
    "parts of complex numbers": lambda t: torch.view_as_complex(t[:, :2]).real,
}
WRITES = {
    "nothing": lambda v, factor: None,
    "all": lambda v, factor: v.mul_(2),
    "first": lambda v, factor: v[0].mul_(2),
    "last of each": lambda v, factor: v[..., 0].mul_(factor),
    "a copy": lambda v, factor: v.copy_(v.detach() * 3),
}


def turned_view(t, view, turn):
    v = view(t)
    turn(v)
    return v, v


def view_beside(t, view, turn):
    v, other = view(t), view(t)
    turn(v)
    return v, other


def view_of_turned(t, view, turn):
    v = view(t)
    turn(t)
    return v, t


def weights(t):
    return torch.arange(1.0, t.numel() + 1, device=t.device).view(t.shape)


def outcome(device, view, turn, write, order):
    leaf = torch.arange(9.0).view(3, 3).to(device).requires_grad_()
    factor = torch.tensor(4.0, device=device, requires_grad=True)
    t = leaf * 1.5
    try:
        read, written = order(t, view, turn)
        write(written, factor)
        ((read * weights(read)).sum() + (t * weights(t)).sum()).backward()
    except (RuntimeError, IndexError) as e:
        return type(e)
    return [leaf.grad, factor.grad, t.detach(), read.detach()]


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize(
    "order", [turned_view, view_of_turned, pytest.param(view_beside, marks=pytest.mark.slow)]
)
def test_gradients_through_what_was_turned(turn, order):
    compared = 0
    for name, view in VIEWS.items():
        if "as_strided" in turn and name in ("diagonal", "unfold", "parts of complex numbers"):
            continue  # it would reach elements that the view does not show
        for what, write in WRITES.items():
            if what in ("all", "a copy") and name != "slice":
                continue
            want = outcome("cpu", view, TURNS[turn], write, order)
            got = outcome("xla", view, TURNS[turn], write, order)
            label = f"{name}, then {what}"
            if isinstance(want, type):
                assert got is want, label
                continue
            assert not isinstance(got, type), (label, got)
            for g, w in zip(got, want, strict=True):
                if w is None:
                    assert g is None, label
                    continue
                assert g.stride() == w.stride(), label
                torch.testing.assert_close(g.cpu(), w, msg=lambda m, at=label: f"{at}: {m}")
            compared += 1
    assert compared >= 5


def test_second_gradients_through_what_was_turned():
    def gradients(device):
        leaf = torch.arange(9.0).view(3, 3).to(device).requires_grad_()
        t = leaf.square()
        v = t[:2]
        v.t_()
        v[0].mul_(leaf[0, :2])
        t.unsqueeze_(0)
        (first,) = torch.autograd.grad((v * v).sum() + t.sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad((first * first).sum(), leaf)
        return [first.detach().cpu(), second.cpu()]

    torch.testing.assert_close(gradients("xla"), gradients("cpu"))
