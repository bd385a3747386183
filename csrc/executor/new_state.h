// Makes the first step of a training loop the same program as those that follow.
#pragma once

#include <vector>

#include "executor/graph.h"

namespace torch_xla::executor {

// Returns the constants from which a step has made new state: the zeros that an optimizer makes
// moments of. Later steps find state as data. Where these constants are made data before the first
// step runs, the first step is what later ones are and needs no program of its own. Returns none
// where the step updates no older state of such a shape, or where it has just been asked the same:
// then each step makes such state anew. The caller holds the GraphLock.
std::vector<lazy::Value> constants_of_new_state(const Graph& graph);
// Counts a run, by which constants_of_new_state() knows what was just asked.
void count_run();

}  // namespace torch_xla::executor
