// Runs that wait for their programs, which are compiled meanwhile. Their results are data already:
// arrays that have a type and get their buffers when the run is launched. Where that fails, results
// become the calls again that they were recorded as, so nothing is lost.
#pragma once

#include <memory>
#include <optional>

#include "executor/compile.h"
#include "executor/graph.h"
#include "executor/run.h"

namespace torch_xla::executor {

// The first four are called with the GraphLock.

// Whether a run of the graph has to come after some that wait: it reads what they are to give, or
// takes over what they are to read.
bool has_deferred_before(const Graph& graph);
// How many references to an array are those of runs that wait.
long deferred_references(const pjrt::Array& array);
// Puts a run off if that is possible. `program` is null where it is still to be made of `missing`,
// which is taken. `storages` get the results `root_of` says.
std::optional<Given> defer(const Graph& graph, const std::vector<lazy::Storage*>& storages,
                           const std::vector<size_t>& root_of,
                           std::shared_ptr<const Program> program, Missing& missing,
                           const Cause& cause);
// Says which leaves have the data that the last defer() gave.
void note_deferred(const std::vector<lazy::Value>& leaves);

// Says that a storage which held `before` was given data that a run has made, or is to make. Until
// that has ended, the storage may go back. Called with the GraphLock.
void note_replaced(lazy::Storage& storage, const lazy::Value& before);

size_t num_deferred();
// Whether all values are data that no run is still to give.
bool are_there(const std::vector<lazy::Value>& values);
// Launches the runs whose programs are there. Why one could not be launched remains to be told:
// report_deferred() throws that, once, after it has undone what the run was to do.
void launch_deferred();
void report_deferred();
// Waits for the programs and launches all; finish_deferred() throws why one could not be launched.
void await_deferred();
void finish_deferred();

}  // namespace torch_xla::executor
