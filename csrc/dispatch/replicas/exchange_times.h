// Counts how long the exchanges of each line take that go through the host. A rank that comes late
// spends the least in one, and the others wait for it there.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "dispatch/replicas/agreement.h"

namespace torch_xla::dispatch {

struct ExchangeTime {
  std::string what, line;
  std::vector<int64_t> members;
  uint64_t count = 0;
  double seconds = 0;
};

void note_exchange_time(const Told& exchange, const std::vector<int64_t>& members,
                        std::chrono::duration<double> taken);

// The longest first; they begin anew where `clear`.
std::vector<ExchangeTime> exchange_times(bool clear);

}  // namespace torch_xla::dispatch
