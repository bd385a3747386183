// Makes the first step of a training loop the same program as those that follow.
#pragma once

#include <vector>

#include "executor/compile/graph.h"

namespace torch_xla::executor {

// Returns the constants from which a step has made new state: the zeros that an optimizer makes
// moments of. Later steps find state as data. Where these constants are made data before the first
// step runs, the first step is what later ones are and needs no program of its own. Returns none
// where the step updates no older state of such a shape. What a place of the user's program makes
// in two steps in a row is no state (gradients begin as zeros, too) and stays a constant from then
// on. The caller holds the GraphLock.
std::vector<lazy::Value> constants_of_new_state(const Graph& graph);
// Counts the run of a graph as a step, if it is one; so constants_of_new_state() knows what comes
// in a row.
void count_update(const Graph& graph);

}  // namespace torch_xla::executor
