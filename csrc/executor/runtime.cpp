#include "executor/runtime.h"

#include <atomic>
#include <mutex>

#include "lazy/lock.h"
#include "ops/host_kernel.h"
#include "pjrt/huge_pages.h"
#include "util/error.h"
#include "util/flags.h"
#include "util/log.h"

namespace torch_xla::executor {
namespace {

std::function<PluginChoice()>& resolver() {
  static auto& fn = *new std::function<PluginChoice()>;
  return fn;
}

// Never destroyed: buffers may outlive every static destructor of this library.
std::atomic<Runtime*> made{nullptr};
std::mutex& creation_mutex() {
  static auto& mutex = *new std::mutex;
  return mutex;
}
pjrt::Options& custom_compile_options() {
  static auto& options = *new pjrt::Options;
  return options;
}
thread_local int current = 0;

}  // namespace

void set_plugin_resolver(std::function<PluginChoice()> fn) { resolver() = std::move(fn); }

Runtime& Runtime::get() {
  if (Runtime* runtime = made.load(std::memory_order_acquire)) {
    runtime->client_->check_process("xla");
    return *runtime;
  }
  TXLA_CHECK(resolver() != nullptr,
             "xla: expected `import torch_xla` before the first xla device.");
  // Outside the lock: choosing enters Python.
  const PluginChoice choice = resolver()();
  const std::lock_guard lock(creation_mutex());
  if (made.load(std::memory_order_relaxed) == nullptr) made.store(new Runtime(choice));
  return *made.load();
}

Runtime* Runtime::get_if_made() { return made.load(std::memory_order_acquire); }

Runtime::Runtime(const PluginChoice& choice)
    : device_type_(choice.device_type), compile_options_(choice.compile_options) {
  std::shared_ptr<pjrt::Plugin> plugin = pjrt::Plugin::load(choice.library_path);
  if (device_type_ == "CPU" && util::flag::XLA_CPU_HUGE_PAGES() &&
      !pjrt::use_huge_pages(plugin->path())) {
    TXLA_VLOG(1) << "large buffers come in small pages: cannot replace the plugin's allocations";
  }
  client_ = pjrt::Client::create(plugin, choice.options);
  // XLA's CPU backend otherwise loses a nan on the right of maximum, minimum and their reductions.
  if (device_type_ == "CPU") compile_options_.emplace("xla_cpu_enable_fast_min_max", false);
  // PyTorch's CPU kernels inside programs: for plugins that run on the host's memory.
  if (device_type_ == "CPU" &&
      !pjrt::register_ffi_handler(*plugin, ops::kHostKernelTarget, ops::host_kernel_handler())) {
    TXLA_LOG(WARNING) << "the plugin has no FFI extension: operators that need PyTorch's kernels "
                         "will fail to compile";
  }
}

pjrt::Options Runtime::compile_options() const {
  pjrt::Options options = compile_options_;
  for (const auto& [name, value] : custom_compile_options()) options[name] = value;
  return options;
}

pjrt::Device Runtime::device(int index) {
  const auto& devices = client_->addressable_devices();
  if (index < 0 || index >= static_cast<int>(devices.size())) {
    util::fail(util::ErrorKind::Runtime, "xla:", index, ": expected one of the ", devices.size(),
               " ", device_type_, " device(s) of this process. See torch_xla.devices().");
  }
  return devices[index];
}

void set_custom_compile_options(pjrt::Options options) {
  const lazy::GraphLock lock;
  custom_compile_options() = std::move(options);
}

void require_device(int index) { Runtime::get().device(index); }

int current_device() { return current; }
void exchange_current_device(int index) noexcept { current = index; }
void set_current_device(int index) {
  Runtime::get().device(index);
  current = index;
}

}  // namespace torch_xla::executor
