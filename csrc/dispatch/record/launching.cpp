#include "dispatch/record/launching.h"

#include "dispatch/record/context.h"
#include "executor/step/sync.h"
#include "lazy/device.h"
#include "lazy/lock.h"

namespace torch_xla::dispatch {

void Launching::before_call(int index) {
  if (part_ == Part::None) return;
  lazy::Device& device = lazy::Device::of(index);
  const auto begins_step = [&] {
    const lazy::GraphLock lock;
    return last_step_ == device.step ||
           (part_ == Part::Forward && device.step_of_backward == device.step);
  };
  if (begins_step()) executor::sync_device(index, false, executor::kDynamo);
  const lazy::GraphLock lock;
  last_step_ = device.step;
  if (part_ == Part::Backward) device.step_of_backward = device.step;
}

bool Launching::at_once() const { return part_ == Part::None || is_eager_mode(); }

}  // namespace torch_xla::dispatch
