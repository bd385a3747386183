#include "dispatch/record/context.h"

#include <atomic>

#include "dispatch/device/generator.h"
#include "executor/runtime.h"
#include "executor/sync.h"
#include "lazy/source.h"
#include "util/flags.h"

namespace torch_xla::dispatch {
namespace {

std::atomic<bool> eager{false};

}  // namespace

int current_device() { return executor::current_device(); }

int current_device_or(const at::Device& device) {
  if (device.type() != at::kXLA) return -1;
  const int index = device.has_index() ? device.index() : current_device();
  executor::require_device(index);
  return index;
}

uint64_t seed_for(const torch::jit::Stack& stack, size_t base, const Plan& plan, int device) {
  std::optional<at::Generator> generator;
  for (size_t i = 0; i < plan.arguments.size(); ++i) {
    if (plan.arguments[i].type != ArgumentType::Generator) continue;
    generator = stack[base + i].toOptional<at::Generator>();
  }
  return draw_seed(generator, device);
}

void refresh_debug_flags() {
  lazy::keep_stacks(util::flag::XLA_IR_DEBUG() || util::flag::XLA_HLO_DEBUG());
  eager = util::flag::XLA_USE_EAGER_DEBUG_MODE();
}

void after_record(int device) {
  if (eager.load(std::memory_order_relaxed)) executor::sync_device(device, false);
}

}  // namespace torch_xla::dispatch
