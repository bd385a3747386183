// Runtime holds the process's PJRT client and its devices; the first use of a device creates it. A
// logical device, xla:<index>, is what tensors live on and programs run on: one of the devices that
// this process addresses or, in SPMD mode, all of the job together as xla:0.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/target.h"
#include "pjrt/client.h"
#include "pjrt/compile_options.h"
#include "pjrt/profiler.h"

namespace torch_xla::executor {

struct PluginChoice {
  std::string device_type;  // "CPU", "CUDA", "TPU" or a registered name
  std::string library_path;
  pjrt::Options options;          // of the client
  pjrt::Options compile_options;  // compiler flags of every program
  // By it the processes of a job make one client; null where each has one of its own.
  std::shared_ptr<pjrt::KeyValueStore> store;
  int rank = 0;           // this process's among those
  int num_processes = 0;  // of the client; 0: any
};

// Sets the function that chooses the plugin; it is called when the client is made.
void set_plugin_resolver(std::function<PluginChoice()> resolver);

class Runtime {
 public:
  // Creates the client; throws in a child forked after that.
  static Runtime& get();
  static Runtime* get_if_made();  // null when no device was needed yet

  pjrt::Client& client() { return *client_; }
  const std::string& device_type() const { return device_type_; }
  // Returns the target that programs of this process are made for.
  const ops::Target& target() const { return target_; }
  int device_count() const { return static_cast<int>(logical_devices().size()); }
  // Returns the client's devices that the logical device stands for; throws when there is no such
  // device.
  const pjrt::Devices& devices(int index) const;
  // Returns the compiler flags of every program; the user's override the plugin's. The caller holds
  // the GraphLock.
  pjrt::Options compile_options() const;
  bool spmd() const { return spmd_; }
  // Makes all devices one logical device. Nothing runs, and no tensor is on another than xla:0.
  void use_spmd();

 private:
  using DeviceLists = std::vector<pjrt::Devices>;

  Runtime(const PluginChoice& choice, bool spmd);
  const DeviceLists& logical_devices() const { return spmd_ ? together_ : apart_; }
  void choose_partitioner();
  void check_processes(const PluginChoice& choice) const;

  std::string device_type_;
  ops::Target target_;
  pjrt::Options compile_options_;
  std::shared_ptr<pjrt::Client> client_;
  DeviceLists apart_, together_;
  std::atomic<bool> spmd_;
};

// Begins the profile that the plugin itself makes; null where it makes none. Where it makes one,
// the client is created. `options` as in pjrt::Profiler.
std::unique_ptr<pjrt::Profiler> profile_plugin(const std::string& options);

// Returns whether all devices are one logical device, or will be when the client is made.
bool is_spmd();
// Makes that so for a client that is made later. Returns false where there is one.
bool request_spmd();
// Returns the compile options of programs for a device.
pjrt::CompileOptions compile_options_of(int device);
// Sets the user's compiler flags of the programs compiled from now on; the plugin's own stay.
void set_custom_compile_options(pjrt::Options options);

// Throws unless this process has the device; creates the client.
void require_device(int index);

// Return and set the calling thread's current device, which serves calls that name none.
int current_device();
void set_current_device(int index);
void exchange_current_device(int index) noexcept;  // without a check

}  // namespace torch_xla::executor
