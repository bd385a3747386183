"""scan_layers of layers that hold other things than their tensors: numbers, functions, hooks.

Units: _src/functions/held_tensors, _src/functions/same_layers.
"""

import copy
import functools
import warnings

import pytest
import torch
from torch import nn

import torch_xla.experimental.scan_layers as module
from torch_xla import _XLAC
from torch_xla.experimental.scan_layers import scan_layers


class Block(nn.Module):
    """A layer with a part of each common kind, and attributes of each common type."""

    def __init__(self, p=0.0, eps=1e-5, slope=0.1, **attributes):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.inner = nn.Sequential(nn.LayerNorm(3, eps=eps), nn.LeakyReLU(slope))
        self.drop = nn.Dropout(p)
        self.rate, self.rates, self.settings = 1.0, [1.0, 2.0], {"scale": (2, 3)}
        self.function, self.upper, self.kind = torch.relu, True, "plain"
        self.holder, self.shift, self.index = Holder(1), None, 0
        self.__dict__.update(attributes)

    def forward(self, x):
        f = self.function(self.linear(x)) * self.settings["scale"][1] * self.holder.value
        if self.shift is not None:
            f = f + self.shift
        f = f if self.upper else -f
        f = f.tanh() if self.kind == "plain" else f
        return self.inner(x + self.rate * self.drop(f) * self.rates[0])


class Holder:
    def __init__(self, value):
        self.value = value


class Slots:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def times(number):
    return lambda x: x * number


def layers_of(**each):
    torch.manual_seed(0)
    return nn.ModuleList(
        Block(**{name: values[i] for name, values in each.items()}) for i in range(3)
    )


def one_by_one(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def results(run, layers, x):
    """The value, and the gradients of the input and of all parameters."""
    x = x.detach().requires_grad_()
    result = run(layers, x)
    found = torch.autograd.grad(result.square().sum(), [x, *layers.parameters()])
    return [t.detach().cpu() for t in (result, *found)]


def check(here, told=None, twice=True):
    """Right values; a warning with these words, or none, and then one loop."""
    there = copy.deepcopy(here).to("xla")
    x = torch.rand(2, 3)
    for _ in range(2 if twice else 1):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = results(scan_layers, there, x.to("xla"))
        texts = [str(w.message) for w in caught if "scan_layers" in str(w.message)]
        assert len(texts) == (told is not None), texts
        if told is not None:
            assert told in texts[0] and "one by one" in texts[0]
        for mine, other in zip(found, results(one_by_one, here, x), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = _XLAC._get_stablehlo([scan_layers(there, x.to("xla"))], "cpu")
    assert ("stablehlo.while" in text) == (told is None)


# By name: what the layers hold, and what the warning says.
VALUES = {
    "a rate": ({"rate": [0.0, 1.0, 2.0]}, "layer 1 has rate = 1.0, the first 0.0"),
    "an int and a float": ({"rate": [2, 2.0, 2]}, "layer 1 has rate = 2.0, the first 2"),
    "signs of zero": ({"rate": [0.0, -0.0, 0.0]}, "layer 1 has rate = -0.0, the first 0.0"),
    "one dropout": ({"p": [0.0, 0.0, 1.0]}, "layer 2 has drop.p = 1.0, the first 0.0"),
    "an eps": ({"eps": [1e-5, 10.0, 1.0]}, "layer 1 has inner.0.eps = 10.0, the first 1e-05"),
    "slopes": ({"slope": [0.1, 0.2, 0.3]}, "layer 1 has inner.1.negative_slope = 0.2"),
    "in a list": ({"rates": [[1.0, 2.0], [1.5, 2.0], [1.0, 2.0]]}, "rates[0] = 1.5, the first 1.0"),
    "in a dict": (
        {"settings": [{"scale": (2, i)} for i in range(3)]},
        "layer 1 has settings['scale'][1] = 1, the first 0",
    ),
    "in an object": ({"holder": [Holder(i) for i in range(3)]}, "layer 1 has holder.value = 1"),
    "in slots": ({"holder": [Slots(i) for i in range(3)]}, "layer 1 has holder.value = 1"),
    "in a closure": ({"function": [times(i) for i in range(3)]}, "function: number = 1"),
    "in a partial": (
        {"function": [functools.partial(torch.mul, other=i) for i in range(3)]},
        "function.keywords['other'] = 1",
    ),
    "tensors": ({"shift": [torch.tensor(float(i)) for i in range(3)]}, "shift = a tensor of shape"),
}


@pytest.mark.parametrize("case", VALUES)
def test_layers_of_other_values_are_called_one_by_one(case):
    each, told = VALUES[case]
    check(layers_of(**each), told)


# What makes no difference.
EQUAL = {
    "nothing": {},
    "equal containers": {"settings": [{"scale": (2, 3)} for _ in range(3)]},
    "equal functions": {"function": [times(2) for _ in range(3)]},
    "equal objects": {"holder": [Holder(4) for _ in range(3)]},
    "nan": {"unused": [float("nan") for _ in range(3)]},
    "numbers of layers, which nobody reads": {"index": [0, 1, 2]},
    "names, which nobody reads": {"name": ["a", "b", "c"]},
}


@pytest.mark.parametrize("case", EQUAL)
def test_layers_that_hold_the_same_are_one_loop(case):
    check(layers_of(**EQUAL[case]))


OTHERS = {
    "a text": ({"kind": ["plain", "other", "plain"]}, "kind = 'other' in layer 1, and 'plain' in"),
    "a bool": ({"upper": [True, True, False]}, "upper = False in layer 2, and True in"),
    "None": ({"shift": [None, 1.0, None]}, "shift = 1.0 in layer 1, and None in"),
    "a function": ({"function": [torch.relu, torch.tanh, torch.relu]}, "function = .*tanh.* in la"),
    "code": ({"function": [lambda x: x, lambda x: x + 1, lambda x: x]}, "function = .*lambda"),
    "a set": ({"kinds": [{1}, {2}, {1}]}, r"kinds = \{2\} in layer 1, and \{1\}"),
    "a length": ({"rates": [[1.0], [1.0, 2.0], [1.0]]}, r"rates = \[1.0, 2.0\] in layer 1"),
}


@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.parametrize("pure", [False, True])
def test_other_differences_are_refused(case, pure):
    each, told = OTHERS[case]
    layers = layers_of(**each).to("xla")
    for _ in range(2):
        with pytest.raises(ValueError, match=told):
            scan_layers(layers, torch.ones(3, device="xla"), is_layer_pure=pure)


def test_hooks():
    layers = layers_of().to("xla")
    x = torch.ones(3, device="xla")
    handle = layers[2].inner[0].register_forward_hook(lambda part, args, result: result * 2)
    with pytest.raises(ValueError, match=r"inner.0._forward_hooks = \[.*\] in layer 2, and \[\] "):
        scan_layers(layers, x)
    handle.remove()
    scan_layers(layers, x)
    handle = layers[0].register_forward_pre_hook(lambda part, args: (args[0] * 2,))
    with pytest.raises(ValueError, match=r"_forward_pre_hooks = \[\] in layer 1, and \["):
        scan_layers(layers, x)
    handle.remove()

    def double(part, args, result):
        return result * 2

    here = layers_of()
    for layer in here:
        layer.linear.register_forward_hook(double)
    check(here)


def test_an_attribute_that_changes_between_calls():
    layers = layers_of()
    check(layers)
    layers[1].rate = 3.0
    check(layers, "layer 1 has rate = 3.0, the first 1.0")
    layers[1].rate = 1.0
    check(layers)


class Counts(nn.Module):
    """A layer that notes numbers, texts and bools while it runs."""

    def __init__(self, rate=1.0):
        super().__init__()
        self.linear, self.rate = nn.Linear(3, 3), rate
        self.calls, self.longest, self.begun = 0, None, False

    def forward(self, x):
        self.calls += 1
        if not self.begun or len(x) > self.longest:
            self.begun, self.longest, self.text = True, len(x), f"{len(x)} rows"
        return self.linear(x) * self.rate


def test_what_layers_note_while_they_run():
    here = nn.ModuleList(Counts() for _ in range(3))
    check(here, twice=True)
    there = copy.deepcopy(here).to("xla")
    for rows in (1, 4):
        scan_layers(there, torch.rand(rows, 3, device="xla"))
        longest = max(rows, 2)
        for layer in there:
            assert (layer.begun, layer.longest, layer.text) == (True, longest, f"{longest} rows")
        assert len({layer.calls for layer in there}) == 1
    # Where they are called one by one, each has noted its own call.
    there = nn.ModuleList(Counts(rate) for rate in (1.0, 2.0)).to("xla")
    for calls in (1, 2):
        with pytest.warns(UserWarning, match="rate = 2.0"):
            scan_layers(there, torch.rand(2, 3, device="xla"))
        assert [layer.calls for layer in there] == [calls] * 2


def test_layers_that_are_compiled():
    layers = layers_of().to("xla")
    compiled = [torch.compile(layer, backend="openxla") for layer in layers]
    x = torch.ones(3, device="xla")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "scan_layers")
        torch.testing.assert_close(scan_layers(compiled, x), one_by_one(layers, x))


def test_pure_layers_are_compared_with_each_other_first():
    layers = layers_of().to("xla")
    other = Block(upper=False).to("xla")
    x = torch.ones(3, device="xla")
    scan_layers(layers, x, is_layer_pure=True)
    with pytest.raises(ValueError, match="upper = False in layer 1"):
        scan_layers([layers[0], other], x, is_layer_pure=True)


def test_other_parts_are_refused():
    x = torch.ones(3, device="xla")
    more = [nn.Sequential(nn.Linear(3, 3)), nn.Sequential(nn.Linear(3, 3), nn.ReLU())]
    for layers in (more, more[::-1]):
        with pytest.raises(ValueError, match="same parts in the same mode"):
            scan_layers([layer.to("xla") for layer in layers], x)


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_batch_norm_says_what_to_do(device):
    layers = nn.ModuleList(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)) for _ in range(2)).to(
        device
    )
    before = copy.deepcopy(layers.state_dict())
    x = torch.rand(4, 3).to(device)
    words = r"'1' \(BatchNorm1d\).*writes num_batches_tracked.*eval\(\).*track_running_stats=False"
    with pytest.raises(RuntimeError, match=words):
        scan_layers(layers, x)
    for name, tensor in layers.state_dict().items():
        assert torch.equal(tensor.cpu(), before[name].cpu()), name
    layers.eval()
    torch.testing.assert_close(scan_layers(layers, x), one_by_one(layers, x), rtol=1e-4, atol=1e-5)


def test_what_is_known_of_pure_layers_goes_with_them():
    def default(*args):
        raise AssertionError

    layers = [nn.Linear(3, 3).to("xla") for _ in range(2)]
    scan_layers(layers, torch.ones(3, device="xla"), default, is_layer_pure=True)
    key = id(default), id(layers[0])
    assert key in module._ONE_LAYER_CACHE
    layers.clear()
    assert key not in module._ONE_LAYER_CACHE
