// The options of a compilation: devices, partitioning and compiler flags. serialize() writes xla's
// CompileOptionsProto, the form that PJRT takes.
#pragma once

#include <string>
#include <vector>

#include "pjrt/plugin.h"

namespace torch_xla::pjrt {

struct Devices;

// Says how devices run a program: each does its part of the work, or all of it on data of its own.
enum class Over { Partitions, Replicas };

struct CompileOptions {
  int num_replicas = 1;
  int num_partitions = 1;
  bool use_spmd = false;
  bool use_shardy = false;
  // Global device ids, replica after replica: partition p of replica r runs on device_ids[r *
  // num_partitions + p]. Empty: the plugin's default assignment.
  std::vector<int> device_ids;
  // Run on any one device, chosen by each execution; needs one replica and partition and no
  // device_ids.
  bool portable = false;
  // Lets the partitioner choose the sharding of outputs: one entry for all of them, or one for
  // each.
  std::vector<bool> allow_spmd_sharding_propagation_to_output;
  // Compiler flags by name, such as {"xla_cpu_enable_fast_math", false}; no list values.
  Options env_overrides;

  // Has the program run on all of these, in their order.
  void set_devices(const Devices& devices, Over over);
  std::string serialize() const;
};

}  // namespace torch_xla::pjrt
