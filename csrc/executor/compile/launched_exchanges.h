// Exchanges happen once, whichever thread launches them. A thread may have read a value when
// another one launches the call that gives it: a call with one result becomes data (lazy::Node),
// and of those that exchange something the data is found here. Callers hold the GraphLock.
#pragma once

#include <vector>

#include "executor/compile/graph.h"
#include "executor/program/program.h"

namespace torch_xla::executor {

// The calls of a run that exchange something; `program` is null where it is not made yet.
using Calls = std::vector<c10::intrusive_ptr<lazy::Node>>;
Calls exchanges_in(const Graph& graph, const Program* program);
// Notes that they were launched, and what the results of the run are from now on.
void note_exchanged(const Calls& calls, const Graph& graph, const std::vector<lazy::Value>& leaves);
// Returns the data of a result of such a call, or the value.
lazy::Value if_exchanged(const lazy::Value& value);
// Returns a call that a run would exchange again, which another thread has done meanwhile; or null.
const lazy::Node* exchanged_again(const Graph& graph);

}  // namespace torch_xla::executor
