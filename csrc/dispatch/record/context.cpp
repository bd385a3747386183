#include "dispatch/record/context.h"

#include <atomic>

#include "dispatch/device/generator.h"
#include "executor/run/runtime.h"
#include "executor/step/sync.h"
#include "lazy/source.h"
#include "util/flags.h"

namespace torch_xla::dispatch {
namespace {

std::atomic<bool> eager_mode{false}, eager_flag{false};

}  // namespace

int current_device() { return executor::current_device(); }

int current_device_or(const at::Device& device) {
  if (device.type() != at::kXLA) return -1;
  const int index = device.has_index() ? device.index() : current_device();
  executor::require_device(index);
  return index;
}

uint64_t seed_for(const torch::jit::Stack& stack, size_t base, const OperatorPlan& plan,
                  int device) {
  std::optional<at::Generator> generator;
  for (size_t i = 0; i < plan.arguments.size(); ++i) {
    if (plan.arguments[i].type != ArgumentType::Generator) continue;
    generator = stack[base + i].toOptional<at::Generator>();
  }
  return draw_seed(generator, device);
}

void refresh_debug_flags() {
  lazy::keep_stacks(util::flag::XLA_IR_DEBUG() || util::flag::XLA_HLO_DEBUG());
  eager_flag = util::flag::XLA_USE_EAGER_DEBUG_MODE();
}

void set_eager_mode(bool on) { eager_mode = on; }

bool is_eager_mode() { return eager_mode; }

void after_record(int device) {
  const bool eager =
      eager_flag.load(std::memory_order_relaxed) | eager_mode.load(std::memory_order_relaxed);
  if (eager && executor::CompiledRegion::current() == nullptr) {
    executor::sync_device(device, false, executor::kEagerMode);
  }
}

}  // namespace torch_xla::dispatch
