// Turns recorded values into data: finds or compiles the program of a graph and launches it.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "executor/compile/cause.h"
#include "executor/step/compiled_region.h"
#include "lazy/tensor.h"
#include "util/hash.h"

namespace torch_xla::executor {

// Computes everything that is pending on a device; buffers of overwritten tensors are donated.
// Returns once the run is launched, or done if `wait`. When it throws, all values stay recorded.
// `region` is the one that ends with this.
void sync_device(int device, bool wait, const Cause& cause, CompiledRegion* region = nullptr);

// Computes these values and replaces them by data. Pending values that depend on what is computed
// on the way are computed too; the rest of the graph stays recorded.
void materialize(std::vector<lazy::Value>& values, int device, const Cause& cause = kValueIsRead);

// Computes the values that `current` gives, with the graph's lock, and returns data. It is asked
// again where another thread has exchanged meanwhile what they need: they may be data by then.
using Current = std::function<std::vector<lazy::Value>()>;
std::vector<lazy::Value> materialize(const Current& current, int device,
                                     const Cause& cause = kValueIsRead);

// Launches what computes these tensors, as they are by then.
void launch(at::TensorList tensors, int device, const Cause& cause);

// Computes distinct values as materialize() does, but all else goes on waiting, nothing takes over
// memory, and the program runs again and again, for so many seconds or a few times at least.
// Returns what each run has taken, with its launch; nothing where all values are data.
std::vector<double> time_runs(std::vector<lazy::Value>& values, int device, double seconds);

// Waits until the device has finished all runs. Throws the first failure since the last call.
void wait_device(int device);

// Returns the StableHLO of the graph that computes these values, for `platform` or the one in use.
std::string stablehlo_of(const std::vector<lazy::Value>& values, int device,
                         std::string_view platform = {});
// Returns that of the program which a sync of the device would launch now, for `platform`.
std::string stablehlo_of_sync(int device, std::string_view platform);
// Returns it for every compiler: its arguments are the data on the device alone (lower_portable).
std::string portable_stablehlo_of(const std::vector<lazy::Value>& values, int device);
// Returns the graph's key in the table of compiled programs, with what its leaves offer by hand
// (run/offers.h) where it is asked for.
util::Hash128 graph_hash_of(const std::vector<lazy::Value>& values, int device,
                            bool with_offers = false);

}  // namespace torch_xla::executor
