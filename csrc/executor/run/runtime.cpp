#include "executor/run/runtime.h"

#include <atomic>
#include <set>

#include "cpu/host_kernel.h"
#include "cpu/in_memory.h"
#include "cpu/large_blocks.h"
#include "cpu/numbers.h"
#include "lazy/lock.h"
#include "pjrt/executable.h"
#include "util/error.h"
#include "util/flags.h"
#include "util/lock_order.h"
#include "util/log.h"
#include "util/unlocked.h"

namespace torch_xla::executor {
namespace {

std::function<PluginChoice()>& resolver() {
  static auto& fn = *new std::function<PluginChoice()>;
  return fn;
}

// Never destroyed: buffers may outlive every static destructor of this library.
std::atomic<Runtime*> made{nullptr};
util::Mutex& creation_mutex() {
  static auto& mutex = *new util::Mutex(util::Rank::Startup);
  return mutex;
}
pjrt::Options& custom_compile_options() {
  static auto& options = *new pjrt::Options;
  return options;
}
// Enters Python.
PluginChoice choose_plugin() {
  TXLA_CHECK(resolver() != nullptr,
             "xla: expected `import torch_xla` before the first xla device.");
  return resolver()();
}
std::atomic<bool> spmd_requested = false;  // before there is a client
thread_local int current = 0;

// This pass of XLA's gives operands a layout of their own before layouts are assigned, and the
// folding of constants reads them in the result's: elements change places. Passes that the user
// disables stay disabled.
void disable_reshape_mover(pjrt::Options& options) {
  static const std::string kOption = "xla_disable_hlo_passes", kPass = "reshape-mover";
  std::string passes;
  if (const auto given = options.find(kOption); given != options.end()) {
    if (const auto* text = std::get_if<std::string>(&given->second)) passes = *text;
  } else {
    const std::string flags = util::flag::XLA_FLAGS();
    const std::string prefix = "--" + kOption + "=";
    if (const size_t at = flags.find(prefix); at != std::string::npos) {
      const size_t begin = at + prefix.size();
      passes = flags.substr(begin, flags.find_first_of(" \t\n", begin) - begin);
    }
  }
  options[kOption] = passes.empty() ? kPass : passes + "," + kPass;
}

}  // namespace

void set_plugin_resolver(std::function<PluginChoice()> fn) { resolver() = std::move(fn); }

Runtime& Runtime::get() {
  if (Runtime* runtime = made.load(std::memory_order_acquire)) {
    runtime->client_->check_process("xla");
    return *runtime;
  }
  const PluginChoice choice = choose_plugin();  // outside the lock
  util::Unlocked unlocked;                      // the plugin may wait for other processes
  {
    const std::lock_guard lock(creation_mutex());
    if (made.load(std::memory_order_relaxed) == nullptr) {
      made.store(new Runtime(choice, spmd_requested || util::flag::XLA_USE_SPMD()));
    }
  }
  unlocked.end();
  return *made.load();
}

Runtime* Runtime::get_if_made() { return made.load(std::memory_order_acquire); }

Runtime::Runtime(const PluginChoice& choice, bool spmd)
    : device_type_(choice.device_type),
      target_(ops::target_of(device_type_)),
      compile_options_(choice.compile_options),
      spmd_(spmd) {
  std::shared_ptr<pjrt::Plugin> plugin = pjrt::Plugin::load(choice.library_path);
  if (device_type_ == "CPU" && util::flag::XLA_CPU_HUGE_PAGES()) {
    cpu::keep_small_blocks();
    if (!cpu::use_large_blocks(plugin->path())) {
      TXLA_VLOG(1) << "large blocks come in small pages and are not kept: cannot replace the "
                      "plugin's allocations";
    }
  }
  client_ = pjrt::Client::create(plugin, choice.options, choice.store);
  check_processes(choice);
  together_ = {pjrt::Devices(client_->devices())};
  const bool has_other_processes = together_[0].mine.size() != together_[0].all.size();
  target_.exchanges_on_host = target_.exchanges_on_host && !has_other_processes;
  for (const pjrt::Device& device : together_[0].mine) apart_.emplace_back(std::vector{device});
  // XLA's CPU backend otherwise loses a nan on the right of maximum, minimum and their reductions.
  if (device_type_ == "CPU") compile_options_.emplace("xla_cpu_enable_fast_min_max", false);
  // PyTorch's CPU kernels inside programs: for plugins that run on the host's memory.
  if (target_.host_kernels &&
      !(pjrt::register_ffi_handler(*plugin, cpu::kHostKernelTarget, cpu::host_kernel_handler()) &&
        pjrt::register_ffi_handler(*plugin, cpu::kNumbersTarget, cpu::numbers_handler()) &&
        pjrt::register_ffi_handler(*plugin, cpu::kInMemoryTarget, cpu::in_memory_handler()))) {
    target_.host_kernels = false;
    TXLA_LOG(WARNING) << "the plugin has no FFI extension: operators that need PyTorch's kernels "
                         "run on the host";
  }
  if (spmd_) choose_partitioner();
}

void Runtime::use_spmd() {
  choose_partitioner();
  spmd_ = true;
  current = 0;
}

// Replicas count by ranks, and their devices by the plugin's processes.
void Runtime::check_processes(const PluginChoice& choice) const {
  if (choice.num_processes == 0) return;
  std::set<int> processes;
  for (const pjrt::Device& device : client_->devices()) processes.insert(device.process_index());
  TXLA_CHECK(
      std::ssize(processes) == choice.num_processes && client_->process_index() == choice.rank,
      device_type_, ": expected a client of ", choice.num_processes,
      " processes, of which this is number ", choice.rank, ", got one of ", processes.size(),
      ", of which this is number ", client_->process_index(),
      ". Start the processes in the plugin's order, and let each have a device.");
}

// Shardy, unless the plugin refuses a program that speaks of it or the user wants none; then GSPMD.
void Runtime::choose_partitioner() {
  const size_t num_devices = together_[0].all.size();
  if (num_devices < 2) return;
  target_.lacks.shardy = !util::flag::XLA_USE_SHARDY();
  if (target_.lacks.shardy) return;
  const std::string count = std::to_string(num_devices), type = "tensor<" + count + "xi32>";
  pjrt::CompileOptions options;
  options.set_devices(together_[0], pjrt::Over::Partitions);
  options.use_shardy = true;
  try {
    pjrt::Executable::compile(*client_,
                              "module {\n  sdy.mesh @mesh = <[\"x\"=" + count +
                                  "]>\n  func.func public @main(%x: " + type +
                                  " {sdy.sharding = #sdy.sharding<@mesh, [{\"x\"}]>}) -> " + type +
                                  " {\n    return %x : " + type + "\n  }\n}\n",
                              options);
  } catch (const pjrt::Error& error) {
    target_.lacks.shardy = true;
    TXLA_LOG(INFO) << "the plugin refuses Shardy, so GSPMD partitions programs: " << error.what();
  }
}

pjrt::Options Runtime::compile_options() const {
  pjrt::Options options = compile_options_;
  for (const auto& [name, value] : custom_compile_options()) options[name] = value;
  if (device_type_ == "CPU") disable_reshape_mover(options);
  return options;
}

const pjrt::Devices& Runtime::devices(int index) const {
  const DeviceLists& lists = logical_devices();
  if (index >= 0 && index < static_cast<int>(lists.size())) return lists[index];
  const pjrt::Devices& together = together_[0];
  const size_t count = together.mine.size();
  if (spmd_) {
    util::fail(util::ErrorKind::Runtime, "xla:", index, ": expected xla:0, which stands for the ",
               together.all.size(), " ", device_type_,
               " device(s) of SPMD mode. See torch_xla.device().");
  }
  util::fail(util::ErrorKind::Runtime, "xla:", index, ": expected one of the ", count, " ",
             device_type_, " device(s) of this process. See torch_xla.devices().");
}

std::unique_ptr<pjrt::Profiler> profile_plugin(const std::string& options) {
  const bool made = Runtime::get_if_made() != nullptr;
  if (!made && !pjrt::Profiler::has(*pjrt::Plugin::load(choose_plugin().library_path))) {
    return nullptr;
  }
  return pjrt::Profiler::start(Runtime::get().client().shared_plugin(), options);
}

bool is_spmd() {
  if (const Runtime* runtime = Runtime::get_if_made()) return runtime->spmd();
  return spmd_requested || util::flag::XLA_USE_SPMD();
}

bool request_spmd() {
  const util::Unlocked unlocked;  // who makes the client may wait for other processes
  const std::lock_guard lock(creation_mutex());
  if (Runtime::get_if_made() != nullptr) return false;
  spmd_requested = true;
  return true;
}

// A program for several devices is partitioned, by Shardy where the plugin has it.
pjrt::CompileOptions compile_options_of(int device) {
  const lazy::GraphLock lock;
  const Runtime& runtime = Runtime::get();
  pjrt::CompileOptions options;
  options.set_devices(runtime.devices(device), pjrt::Over::Partitions);
  options.use_shardy = options.use_spmd && !runtime.target().lacks.shardy;
  options.env_overrides = runtime.compile_options();
  return options;
}

void set_custom_compile_options(pjrt::Options options) {
  const lazy::GraphLock lock;
  custom_compile_options() = std::move(options);
}

void require_device(int index) { Runtime::get().devices(index); }

int current_device() { return current; }
void exchange_current_device(int index) noexcept { current = index; }
void set_current_device(int index) {
  require_device(index);
  current = index;
}

}  // namespace torch_xla::executor
