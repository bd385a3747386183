"""What a function that torch_xla.compile may replay reads or changes where it is hard to see."""

from __future__ import annotations

import builtins
import collections
import datetime
import decimal
import io
import logging
import random
import sys
import types
import typing
from datetime import datetime as Moment
from io import FileIO
from typing import ClassVar

import pytest
import torch
from numpy import datetime64
from torch import nn
from torch.nn import functional as F

import torch_xla

from .replay_cases import LATER, Plain, batch, changing, compare, leaving, refused

CASES = []


def case(make):
    CASES.append(make)
    return make


# Built-in functions and types that are made in C.


@case
def reads_the_clock_of_a_class():
    return lambda x: x * (Moment.now().year > 0) + 0 * Moment.now().microsecond, refused


@case
def reads_the_clock_of_a_module():
    return lambda x: x * (datetime.datetime.now().year > 0), refused


@case
def reads_the_clock_through_an_iterator():
    return lambda x: x * (next(iter(datetime.datetime.now, None)).year > 0), refused


@case
def reads_the_clock_of_numpy():
    return lambda x: x * len(str(datetime64("now", "us"))), refused


@case
def reads_the_context_of_decimals():
    context = decimal.getcontext()
    return changing(
        lambda x: x * float(decimal.Decimal(1) / decimal.Decimal(3)),
        lambda i: setattr(context, "prec", 28 if i == LATER[-1] else 2),
    )


@case
def opens_a_file():
    return lambda x: x * (FileIO("/dev/null", "w").write(b"x") == 1), refused


@case
def counts_in_a_metric():
    return lambda x: (torch_xla._XLAC._xla_add_to_counter("OfThisTest"), x * 2)[1], refused


@case
def draws_by_a_class():
    class Drawing:
        draw = random.Random(0).random

    return lambda x: x * Drawing.draw(), lambda step, i: step(batch(i))


@case
def writes_by_a_class():
    stream = io.StringIO()

    class Log:
        write = stream.write

    return leaving(lambda x: (Log.write("a"), x * 2)[1], stream.getvalue)


@case
def reads_a_generator_of_the_cpu():
    def drive(step, i):
        torch.manual_seed(i)
        return step(batch(i))

    return lambda x: x * torch.default_generator.get_state()[:4].to("xla"), drive


@case
def reads_flags_of_cudnn():
    def drive(step, i):
        with torch.backends.cudnn.flags(deterministic=i == LATER[0]):
            return step(batch(i))

    return lambda x: x * 2 if torch.backends.cudnn.deterministic else x, drive


@case
def reads_autocast_of_the_cpu():
    def drive(step, i):
        torch.set_autocast_dtype("cpu", torch.float16 if i in LATER else torch.bfloat16)
        try:
            return step(batch(i))
        finally:
            torch.set_autocast_dtype("cpu", torch.bfloat16)

    return lambda x: x * 2 if torch.get_autocast_dtype("cpu") == torch.float16 else x, drive


# What is returned.


@case
def returns_a_list_that_is_empty():
    kept = []

    def drive(step, i):
        y, returned = step(batch(i))
        if i >= LATER[0]:
            returned.append(i)
        return y, returned is kept, len(kept)

    return lambda x: (x * 2, kept), drive


@case
def returns_an_argument_that_is_empty():
    def drive(step, i):
        given = {}
        y, returned = step(batch(i), given)
        return y, returned is given

    return lambda x, given: (x * 2, given), drive


@case
def returns_a_list_twice():
    def function(x):
        both = [x * 2]
        return both, both

    return function, lambda step, i: (lambda r: r[0] is r[1])(step(batch(i)))


@case
def returns_keys_that_are_tensors():
    def drive(step, i):
        x = batch(i)
        return next(iter(step(x))) is x

    return lambda x: {x: x * 2}, drive


@case
def returns_keys_that_are_objects():
    class Key:
        pass

    kept = []

    def drive(step, i):
        kept.append(next(iter(step(batch(i)))))
        return len(set(map(id, kept)))

    return lambda x: {Key(): x * 2}, drive


@case
def returns_a_tensor_with_another_way_back():
    a, b = (nn.Parameter(torch.ones(4, device="xla")) for _ in range(2))

    def function(x):
        a.grad = None
        y = (x * a) ** 2
        y.sum().backward()
        return y + b

    return function, lambda step, i: torch.autograd.grad(step(batch(i)).sum(), b)[0]


# Which of equal objects there is.


def exchange_of(things):
    def function(x):
        things.reverse()
        return x * 2

    first = things[0]
    return leaving(function, lambda: things[0] is first)


@case
def exchanges_equal_lists():
    return exchange_of([[], []])


@case
def exchanges_equal_objects():
    return exchange_of([Plain(), Plain()])


@case
def replaces_an_attribute_by_an_equal_one():
    state, kept = Plain(), []
    state.cache = {}

    def function(x):
        state.cache = {"a": 1}
        return x * 2

    def effect():
        kept.append(state.cache)
        return len(set(map(id, kept)))

    return leaving(function, effect)


@case
def tells_equal_strings_apart():
    text = "ab" * 50
    state = Plain()
    state.text = text
    return changing(
        lambda x: x * 2 if state.text is text else x,
        lambda i: setattr(state, "text", "".join(["ab"] * 50)),
    )


# Names of globals and of modules.

module = types.ModuleType("module")
LATE = None


@case
def finds_a_name_that_was_not_there():
    globals().pop("NOT_THERE", None)

    def function(x):
        try:
            return x * NOT_THERE  # noqa: F821
        except NameError:
            return x

    return changing(function, lambda i: globals().update(NOT_THERE=i))


@case
def finds_an_attribute_that_was_not_there():
    vars(module).pop("rate", None)

    def function(x):
        try:
            return x * module.rate
        except AttributeError:
            return x

    return changing(function, lambda i: setattr(module, "rate", i))


@case
def looks_attributes_of_a_module_up_in_a_table():
    table = {"looked_up": 1}
    module.__getattr__ = table.__getitem__
    return changing(lambda x: x * module.looked_up, lambda i: table.update(looked_up=i))


@case
def reads_a_built_in_name():
    builtins.RATE_OF_THIS_TEST = 1
    return changing(
        lambda x: x * RATE_OF_THIS_TEST,  # noqa: F821
        lambda i: setattr(builtins, "RATE_OF_THIS_TEST", i),
    )


@case
def reads_a_name_of_built_ins_of_its_own():
    own = {"RATE": 1}
    names = {"__builtins__": own}
    exec("def function(x): return x * RATE", names)
    return changing(names["function"], lambda i: own.update(RATE=i))


@case
def comes_to_a_module_later():
    late = types.ModuleType("late")

    def drive(step, i):
        global LATE
        LATE = Plain() if i < 2 else late
        LATE.value = i
        return step(batch(i))

    return lambda x: x * LATE.value, drive


@case
def comes_to_a_class_later():
    class First:
        table: ClassVar = {"v": 1}

    class Second:
        table: ClassVar = {"v": 1}

    def drive(step, i):
        Second.table["v"] = i
        return step(batch(i), First() if i < 2 else Second())

    return lambda x, c: x * c.table["v"], drive


@case
def reads_an_object_that_pytorch_holds():
    torch.config_of_this_test = Plain()
    torch.config_of_this_test.value = 1
    return changing(
        lambda x: x * torch.config_of_this_test.value,
        lambda i: setattr(torch.config_of_this_test, "value", i),
    )


@case
def reads_a_module_that_it_imports():
    F.rate_of_this_test = 1

    def function(x):
        import torch.nn.functional as functions

        return x * functions.rate_of_this_test

    return changing(function, lambda i: setattr(F, "rate_of_this_test", i))


@case
def reads_a_function_of_pytorch_that_is_replaced():
    original = F.softsign

    def drive(step, i):
        F.softsign = torch.neg if i in LATER else original
        try:
            return step(batch(i))
        finally:
            F.softsign = original

    return lambda x: F.softsign(x), drive


@case
def runs_code_of_pytorch_that_calls_a_replaced_function():
    original = F.linear
    layer = nn.Linear(4, 4).to("xla").requires_grad_(False)

    def drive(step, i):
        if i in LATER:
            F.linear = lambda *args: original(*args) * 2
        try:
            return step(batch(i))
        finally:
            F.linear = original

    return lambda x: layer(x), drive


@case
def reads_an_attribute_of_a_function_of_pytorch():
    F.relu.rate_of_this_test = 1
    return changing(
        lambda x: x * F.relu.rate_of_this_test,
        lambda i: setattr(F.relu, "rate_of_this_test", i),
    )


@case
def reads_an_attribute_of_a_class_of_pytorch():
    nn.Linear.rate_of_this_test = 1
    return changing(
        lambda x: x * nn.Linear.rate_of_this_test,
        lambda i: setattr(nn.Linear, "rate_of_this_test", i),
    )


@case
def reads_a_class_that_pytorch_holds():
    class Config:
        value = 1

    torch.config_of_this_test = Config
    return changing(
        lambda x: x * torch.config_of_this_test.value, lambda i: setattr(Config, "value", i)
    )


@case
def reads_an_attribute_of_all_tensors():
    torch.Tensor.rate_of_this_test = 1
    return changing(
        lambda x: x * x.rate_of_this_test,
        lambda i: setattr(torch.Tensor, "rate_of_this_test", i),
    )


# Objects that are alike.


@case
def reads_the_order_of_an_ordered_dictionary():
    class Cache(collections.OrderedDict):
        pass

    cache = Cache(a=1.0, b=2.0)
    return changing(
        lambda x: x * next(iter(cache.values())), lambda i: cache.move_to_end(next(iter(cache)))
    )


def holding(read, before, after):
    """A function that reads of an object, in the place of which another comes."""
    state = Plain()
    state.held = before
    return changing(lambda x: x * read(state.held), lambda i: setattr(state, "held", after))


@case
def reads_the_bound_of_a_deque():
    one, other = (collections.deque([1], maxlen=n) for n in (2, 3))
    return holding(lambda d: d.maxlen, one, other)


@case
def reads_the_end_of_a_range():
    return holding(lambda r: r.stop, range(0, 3, 2), range(0, 4, 2))


@case
def reads_the_sign_of_a_complex_zero():
    state = Plain()
    state.zero = complex(0.0, 0.0)
    return changing(
        lambda x: torch.signbit(torch.full((2,), state.zero, device="xla").real),
        lambda i: setattr(state, "zero", complex(-0.0, -0.0)),
    )


@case
def reads_what_a_view_is():
    def drive(step, i):
        x = batch(i)
        return step(x[:] if i in LATER else x)

    return lambda x: x * 2 if x._is_view() else x * 3, drive


@case
def reads_the_name_of_a_function():
    def named():
        pass

    return changing(
        lambda x: x * len(named.__name__), lambda i: setattr(named, "__name__", "n" * i)
    )


@case
def reads_the_annotations_of_a_function():
    def annotated(n: int):
        pass

    return changing(
        lambda x: x * len(annotated.__annotations__),
        lambda i: annotated.__annotations__.update({str(i): i}),
    )


@case
def reads_a_frame():
    def function(x):
        try:
            raise ValueError
        except ValueError as error:
            return x * error.__traceback__.tb_frame.f_globals["OF_A_FRAME"]

    globals()["OF_A_FRAME"] = 1
    return changing(function, lambda i: globals().update(OF_A_FRAME=i))


@case
def reads_a_module_by_a_format():
    module.rate, text = 1, "{0.rate}"
    return changing(lambda x: x * int(text.format(module)), lambda i: setattr(module, "rate", i))


@case
def reads_the_level_of_a_logger():
    logger = logging.getLogger("of this test")
    logger.setLevel(logging.WARNING)
    return changing(
        lambda x: x * 2 if logger.level <= logging.DEBUG else x,
        lambda i: logger.setLevel(logging.DEBUG if i == LATER[0] else logging.WARNING),
    )


@case
def reads_the_level_of_the_parent_of_a_logger():
    parent, logger = logging.getLogger("of this"), logging.getLogger("of this.test")
    parent.setLevel(logging.WARNING)
    return changing(
        lambda x: x * 2 if logger.getEffectiveLevel() <= logging.DEBUG else x,
        lambda i: parent.setLevel(logging.DEBUG if i == LATER[0] else logging.WARNING),
    )


@case
def keeps_something_on_a_logger():
    logger = logging.getLogger("of this test, too")
    logger.kept = []
    return leaving(lambda x: (logger.kept.append(1), x * 2)[1], lambda: len(logger.kept))


@case
def reads_the_class_of_an_alias():
    kind = typing.TypeVar("kind")

    class Config(typing.Generic[kind]):
        scale = 1

    alias = Config[int]
    return changing(lambda x: x * alias.scale, lambda i: setattr(Config, "scale", i))


library = torch.library.Library("test_replay_unseen", "DEF")
library.define("scaled(Tensor x) -> Tensor")


def scaling(table):
    def scaled(x):
        return x * table["v"]

    return scaled


TABLE = {"v": 1}
library.impl("scaled", scaling(TABLE), "CompositeImplicitAutograd")


@case
def calls_an_operator_that_is_python():
    TABLE["v"] = 1
    other = scaling({"v": 3})
    return changing(
        lambda x: other(torch.ops.test_replay_unseen.scaled(x)), lambda i: TABLE.update(v=i)
    )


@case
def names_a_range_of_the_profiler():
    def function(x):
        with torch.profiler.record_function("of this test"):
            return x * 2

    def drive(step, i):
        x = batch(i)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            step(x)
        return any(event.key == "of this test" for event in profile.key_averages())

    return function, drive


@case
def sets_a_profile_function():
    def function(x):
        sys.setprofile(lambda *_: None)
        return x * 2

    def drive(step, i):
        x = batch(i)
        try:
            step(x)
            return sys.getprofile() is not None
        finally:
            sys.setprofile(None)

    return function, drive


@pytest.mark.parametrize("make", CASES, ids=lambda m: m.__name__)
def test_calls_give_what_the_function_gives(make):
    compare(make)
