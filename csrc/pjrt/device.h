// Devices and their memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pjrt/plugin.h"

namespace torch_xla::pjrt {

class Client;

struct MemoryStats {
  int64_t bytes_in_use = 0;
  std::optional<int64_t> peak_bytes_in_use, num_allocs, largest_alloc_size, bytes_limit,
      bytes_reserved, peak_bytes_reserved, bytes_reservable_limit, largest_free_block_bytes,
      pool_bytes, peak_pool_bytes;
};

// Describes a device of a client, or of a Topology, whose devices need not be there.
struct DeviceDescription {
  int id = 0;
  int process_index = 0;
  std::string kind;
  std::string debug_string;
  Options attributes;
};

// Holds what a client reads of a device when it is created.
struct DeviceInfo : DeviceDescription {
  const Client* client = nullptr;
  PJRT_Device* handle = nullptr;
  bool addressable = false;
  int local_hardware_id = -1;  // -1: the plugin knows none, or another process has the device
};

// A cheap handle, valid as long as its client.
class Device {
 public:
  explicit Device(const DeviceInfo& info) : info_(&info) {}
  int id() const { return info_->id; }
  int process_index() const { return info_->process_index; }
  int local_hardware_id() const { return info_->local_hardware_id; }
  bool addressable() const { return info_->addressable; }
  const std::string& kind() const { return info_->kind; }
  const std::string& debug_string() const { return info_->debug_string; }
  const Options& attributes() const { return info_->attributes; }
  // Returns nullopt where the plugin keeps no statistics.
  std::optional<MemoryStats> memory_stats() const;
  PJRT_Device* handle() const { return info_->handle; }
  bool operator==(const Device& other) const { return info_ == other.info_; }

 private:
  const DeviceInfo* info_;
};

// The devices that programs run on, of which other processes may address some. Device assignments
// and shardings count positions in `all`; an array has a buffer on each of `mine`.
struct Devices {
  std::vector<Device> all;
  std::vector<Device> mine;        // those that this process addresses, in the order of `all`
  std::vector<int64_t> positions;  // of `mine`, in `all`

  explicit Devices(std::vector<Device> given) : all(std::move(given)) {
    for (size_t i = 0; i < all.size(); ++i) {
      if (!all[i].addressable()) continue;
      mine.push_back(all[i]);
      positions.push_back(static_cast<int64_t>(i));
    }
  }
};

}  // namespace torch_xla::pjrt
