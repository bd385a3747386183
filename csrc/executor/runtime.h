// The process's PJRT client and its devices, created when the first device is needed.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pjrt/client.h"

namespace torch_xla::executor {

struct PluginChoice {
  std::string device_type;  // "CPU", "CUDA", "TPU" or a registered name
  std::string library_path;
  pjrt::Options options;          // of the client
  pjrt::Options compile_options;  // compiler flags of every program
};

// Chooses the plugin; called once, when the client is made.
void set_plugin_resolver(std::function<PluginChoice()> resolver);

class Runtime {
 public:
  // Creates the client; throws in a child forked after that.
  static Runtime& get();
  static Runtime* get_if_made();  // null when no device was needed yet

  pjrt::Client& client() { return *client_; }
  const std::string& device_type() const { return device_type_; }
  int device_count() const { return static_cast<int>(client_->addressable_devices().size()); }
  // Compiler flags of every program: the plugin's, then the user's. Guarded by the graph lock.
  pjrt::Options compile_options() const;
  pjrt::Device device(int index);

 private:
  explicit Runtime(const PluginChoice& choice);

  std::string device_type_;
  pjrt::Options compile_options_;
  std::shared_ptr<pjrt::Client> client_;
};

// Compiler flags of the programs compiled from now on; the plugin's own stay.
void set_custom_compile_options(pjrt::Options options);

// Throws unless this process has the device; creates the client.
void require_device(int index);

// The device of calls that name none; per thread.
int current_device();
void set_current_device(int index);
void exchange_current_device(int index) noexcept;  // without a check

}  // namespace torch_xla::executor
