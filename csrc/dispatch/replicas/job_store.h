// The job's store, c10d's TCPStore, as a plugin reads and writes it while it makes one client of
// all processes and later. Needs neither Python nor a lock of ours.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "pjrt/key_value_store.h"

namespace torch_xla::dispatch {

// Where somebody keeps it. All keys get the prefix. Connects when it is first asked.
std::shared_ptr<pjrt::KeyValueStore> job_store(std::string host, uint16_t port, std::string prefix);

}  // namespace torch_xla::dispatch
