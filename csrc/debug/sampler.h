// Where the threads of this process are in their code, asked for again and again while devices run
// programs. It tells the loops of a program apart where the plugin makes no profile of them.
#pragma once

#include <cstdint>
#include <vector>

namespace torch_xla::debug {

// `thread` ran the instruction at `address` at `time`, in nanoseconds since the epoch.
struct CodeSample {
  int64_t time = 0;
  int64_t thread = 0;
  uint64_t address = 0;
};

inline constexpr int64_t kSamplePeriod = 500'000;  // nanoseconds

// Begins to take samples of the threads that compute, by a signal that nobody uses. Throws where
// somebody does already, where signals are all in use, or where the processor is not known.
void start_sampling();
// Ends that and returns what was taken.
std::vector<CodeSample> stop_sampling();

}  // namespace torch_xla::debug
