// Where the threads of this process are in their code, noted by the kernel while they compute. It
// tells the loops of a program apart where the plugin makes no profile of them.
#pragma once

#include <cstdint>
#include <vector>

namespace torch_xla::cpu {

// `thread` ran the instruction at `address` at `time`, in nanoseconds since the epoch.
struct CodeSample {
  int64_t time = 0;
  int64_t thread = 0;
  uint64_t address = 0;
};

inline constexpr int64_t kSamplePeriod = 500'000;  // nanoseconds that a thread computes

// Begins to take samples of all threads. Throws where somebody does already, and where the system
// does not let this process.
void start_sampling();
// Ends that and returns what was taken.
std::vector<CodeSample> stop_sampling();

}  // namespace torch_xla::cpu
