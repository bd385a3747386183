"""What functions that torch_xla.compile may replay read or change in classes."""

from __future__ import annotations

import functools
import io
import itertools
from typing import ClassVar

import pytest
from torch import nn
from torch.nn import functional as F

from .replay_cases import LATER, batch, changing, compare, leaving

CASES = []


def case(make):
    CASES.append(make)
    return make


# Attributes of classes.


@case
def reads_a_module_of_a_class():
    class Net(nn.Module):
        drop = nn.Dropout(0.5)

        def forward(self, x):
            return self.drop(x)

    net = Net()
    return changing(lambda x: net(x), lambda i: net.drop.train(i == LATER[-1]))


@case
def reads_a_partial_of_a_class():
    class Net:
        activation = functools.partial(F.leaky_relu, negative_slope=0.5)

    return changing(
        lambda x: Net.activation(-x),
        lambda i: Net.activation.keywords.update(negative_slope=float(i)),
    )


@case
def counts_in_a_callable_of_a_class():
    class Counting:
        count = 0

        def __call__(self):
            pass

    class Net:
        counting = Counting()

    def function(x):
        Net.counting.count += 1
        return x * 2

    return leaving(function, lambda: Net.counting.count)


@case
def reads_a_table_with_a_hidden_name():
    class Net:
        __config__: ClassVar = {"v": 1}

    return changing(lambda x: x * Net.__config__["v"], lambda i: Net.__config__.update(v=i))


@case
def looks_attributes_up_in_a_table():
    table = {"v": 1}

    class Config:
        __getattr__ = table.__getitem__

    config = Config()
    return changing(lambda x: x * config.v, lambda i: table.update(v=i))


@case
def is_a_printing_object():
    stream = io.StringIO()

    class Log:
        __call__ = staticmethod(functools.partial(print, file=stream))

    log = Log()
    return leaving(lambda x: (log("a"), x * 2)[1], stream.getvalue)


@case
def iterates_by_c():
    class Numbers:
        __iter__ = lambda self: self  # noqa: E731
        __next__ = itertools.count(1).__next__

    numbers = Numbers()
    return lambda x: x * next(numbers), lambda step, i: step(batch(i))


@case
def has_a_property_of_c():
    class Numbers:
        value = property(functools.partial(next, itertools.count(1)))

    numbers = Numbers()
    return lambda x: x * numbers.value, lambda step, i: step(batch(i))


@case
def reads_a_class_without_a_module():
    names = {}
    exec("class A:\n table = {'v': 1}", names)
    made = names["A"]
    return changing(lambda x: x * made.table["v"], lambda i: made.table.update(v=i))


@case
def reads_an_attribute_of_a_method():
    class Net:
        def method(self):
            pass

    Net.method.rate = 1
    return changing(lambda x: x * Net.method.rate, lambda i: setattr(Net.method, "rate", i))


@case
def remembers_in_a_method():
    box = [1]

    class Net:
        @functools.cache  # noqa: B019
        def scale(self):
            return box[0]

    net = Net()

    def change(i):
        box[0] = i
        Net.scale.cache_clear()

    return changing(lambda x: x * net.scale(), change)


@case
def appends_by_a_class():
    kept = []

    class Registry:
        add = kept.append

    return leaving(lambda x: (Registry.add(1), x * 2)[1], lambda: len(kept))


@case
def reads_by_a_method_that_a_class_holds():
    class Holder:
        def __init__(self, value):
            self.value = value

        def get(self):
            return self.value

    held, reached = Holder(1), Holder(2)

    class Registry:
        get = held.get

    return changing(
        lambda x: x * Registry.get() * reached.get(), lambda i: setattr(held, "value", i)
    )


@case
def reads_what_a_partial_method_holds():
    config = {"v": 1}

    class Net:
        def scaled(self, config, x):
            return x * config["v"]

        go = functools.partialmethod(scaled, config)

    net = Net()
    return changing(lambda x: net.go(x), lambda i: config.update(v=i))


@case
def reads_what_a_descriptor_holds():
    class Constant:
        def __init__(self, value):
            self.value = value

        def __get__(self, owner, kind):
            return self.value

    class Net:
        rate = Constant(1)

    net, reached = Net(), Constant(3)
    return changing(
        lambda x: x * net.rate if reached else x,
        lambda i: setattr(vars(Net)["rate"], "value", i),
    )


@case
def reads_a_metaclass():
    class Meta(type):
        rate = 1

    class Net(metaclass=Meta):
        pass

    return changing(lambda x: x * Net.rate, lambda i: setattr(Meta, "rate", i))


@case
def asks_for_subclasses():
    class Base:
        pass

    kept = []
    return changing(
        lambda x: x * (1 + len(Base.__subclasses__())),
        lambda i: kept.append(type("Derived", (Base,), {})),
    )


@pytest.mark.parametrize("make", CASES, ids=lambda m: m.__name__)
def test_calls_give_what_the_function_gives(make):
    compare(make)
