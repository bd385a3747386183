// Tells each compilation and each run, why it happened and where, and what is too frequent, where
// PT_XLA_DEBUG_LEVEL asks for it. The text is that of PyTorch/XLA's "Compilation & Execution
// Analysis", which people and programs read.
#pragma once

#include <string_view>

#include "executor/compile/cause.h"
#include "executor/compile/graph.h"
#include "executor/compile/observer.h"
#include "executor/program/lower.h"
#include "executor/program/program.h"

namespace torch_xla::executor {

// These cost a look at a flag where nothing is to be told. The first two come before and after the
// compiler, the third in place of both where the disk had the program, the fourth before a launch.
void tell_compilation(const Program& program, const Cause& cause);
void tell_compiled(const Program& program, const std::vector<Lowered>& texts);
void tell_loaded(const Program& program, const std::vector<Lowered>& texts, const Cause& cause,
                 const Origin& origin);
void tell_run(const Graph& graph, const Cause& cause);
bool tells_compilations();
bool tells_runs();
// Tells, always, of a run where none may happen.
void tell_unexpected(const Graph& graph, const Cause& cause);
// Called after each step: tells which metrics are those of a program that waits too often.
void tell_metrics();

}  // namespace torch_xla::executor
