"""Whatever call of the plugin fails, no parameter is lost and training goes on as on the CPU."""

from __future__ import annotations

import pytest


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture
def check(run_python, fault_plugin):
    """Trains once for each place at which a call can fail."""

    def run(program, kind, late=False, wait=True, env=None):
        done = run_python(
            f"""
            from tests import fault_plugin
            from tests.unit.faulted_training import check
            check({program!r}, fault_plugin.{kind}, late={late}, wait={wait})
            """,
            env={
                "PJRT_DEVICE": "CPU",
                "PJRT_LIBRARY_PATH": str(fault_plugin),
                "XLA_FLAGS": "--xla_backend_optimization_level=0",
                **(env or {}),
            },
        )
        assert "places" in done.stdout

    return run


@pytest.mark.parametrize(
    ("program", "wait"),
    [
        ("Training", True),
        slow("Adam", True),
        ("Adam", False),
        ("Accumulated", True),
        ("Compiled", False),
        ("Openxla", True),
        slow("OpenxlaOptimizer", False),
    ],
)
def test_a_run_that_is_refused(check, program, wait):
    check(program, "RUN", wait=wait)


@pytest.mark.parametrize(
    ("program", "wait"),
    [("Momentum", True), slow("Adam", True), ("Training", False), slow("OpenxlaOptimizer", True)],
)
def test_a_run_that_fails_where_nothing_is_taken_over(check, program, wait):
    check(program, "RUN", late=True, wait=wait, env={"XLA_NO_DONATION": "1"})


@pytest.mark.parametrize("program", ["Adam", slow("OpenxlaOptimizer")])
def test_a_program_that_cannot_be_compiled(check, program):
    check(program, "COMPILE", wait=False, env={"XLA_BACKGROUND_COMPILE": "0"})


@pytest.mark.parametrize("program", ["Momentum", slow("Openxla"), "OpenxlaOptimizer"])
def test_a_program_that_cannot_be_compiled_in_the_background(check, program):
    check(program, "COMPILE", wait=False)


@pytest.mark.parametrize(
    ("program", "kind"),
    [("Adam", "UPLOAD"), slow("OpenxlaOptimizer", "UPLOAD"), ("Training", "DOWNLOAD")],
)
def test_a_copy_that_fails(check, program, kind):
    check(program, kind)
