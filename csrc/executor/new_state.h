// Makes the first step of a training loop the same program as those that follow.
#pragma once

#include <vector>

#include "executor/graph.h"

namespace torch_xla::executor {

// Returns the constants from which a step has made new state: the zeros that an optimizer makes
// moments of. Later steps find state as data. Where these constants are made data before the first
// step runs, the first step is what later ones are and needs no program of its own. Returns none
// where the step updates no older state of such a shape. What a place of the user's program makes
// in two steps in a row is no state (gradients begin as zeros, too) and stays a constant from then
// on. The caller holds the GraphLock.
std::vector<lazy::Value> constants_of_new_state(const Graph& graph);
// Counts a step, by which constants_of_new_state() knows what comes in a row.
void count_step();

}  // namespace torch_xla::executor
