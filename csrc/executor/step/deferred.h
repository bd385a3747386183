// Runs that wait for their programs, which are compiled meanwhile. Their results are data already:
// arrays that have a type and get their buffers when the run is launched. Where that fails, results
// become the calls again that they were recorded as, so nothing is lost.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "executor/compile/compile.h"
#include "executor/compile/graph.h"
#include "executor/run/in_flight.h"

namespace torch_xla::executor {

class Compilation;

// A program that is being compiled.
struct Awaited {
  std::shared_ptr<Compilation> compilation;

  void wait() const;
};
// Runs that wait come first.
struct EarlierRuns {};
// The thing that a graph needs before it can run.
using Missing = std::variant<std::monostate, NewState, Unplanned, Unmade, Awaited, EarlierRuns>;

// A graph's gain from its run, which was launched or put off.
struct Given {
  std::vector<lazy::DeviceData> data;  // of each result
  InFlight::Arrays taken_over;         // where DonationCheck asks for it
};

// The first four are called with the GraphLock.

// Returns the program of a graph, or null after filling `missing`. `name` and `again` as for
// find_program().
std::shared_ptr<const Program> program_of(std::string_view name, const Graph& graph, bool again,
                                          Missing& missing);
// Tells whether a run of the graph has to come after some that wait. The order of runs: those of
// barriers are launched in the order of the barriers, device by device. The run of a read comes
// after those that wait only where it reads what they are to give, or takes over what they are to
// read.
bool has_deferred_before(const Graph& graph, bool is_barrier);
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
// Tells whether all values are data that no run is still to give.
bool are_there(const std::vector<lazy::Value>& values);
// Launches the runs whose programs are there. Why one could not be launched remains to be told.
void launch_deferred();
// Throws what remains to be told, once, after it has undone what the runs were to do: why one that
// waited could not be launched; the second, also why one in flight on the device has failed. Runs
// that wait then are given up: they may read what is lost, and know no other way back.
void report_deferred();
void report_failures(int device);
// Waits for the runs in flight on a device, and does so.
void wait_for_runs(int device);
// Called where data cannot be read: throws the failure of the run that was to make it, if that was
// not told yet, else `error`.
[[noreturn]] void fail_read(const pjrt::Error& error, int device, const std::string& context = "");
// Waits for the programs and launches all; finish_deferred() throws why one could not be launched.
void await_deferred();
void finish_deferred();

}  // namespace torch_xla::executor
