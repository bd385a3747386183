// Connections of C++ to the job's store, c10d's TCPStore. They need neither Python nor its lock.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace torch_xla::executor {

// Where somebody keeps it. A call waits for its answer for `time_limit` at most, and then throws.
c10::intrusive_ptr<c10d::TCPStore> connect_to_store(
    const std::string& host, uint16_t port,
    std::chrono::milliseconds time_limit = c10d::Store::kDefaultTimeout);

// Values of the store.
std::vector<uint8_t> bytes_of(std::string_view text);
std::string text_of(const std::vector<uint8_t>& bytes);

}  // namespace torch_xla::executor
