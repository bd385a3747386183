#include "dispatch/functions/launching.h"

#include "dispatch/record/context.h"
#include "executor/step/sync.h"
#include "lazy/device.h"
#include "lazy/lock.h"

namespace torch_xla::dispatch {

void Launching::before_call(int index) {
  if (part_ == StepPart::None) return;
  lazy::Device& device = lazy::Device::of(index);
  const auto begins_step = [&] {
    const lazy::GraphLock lock;
    return last_step_ == device.step ||
           (part_ == StepPart::Forward && device.step_of_backward == device.step);
  };
  if (begins_step()) executor::sync_device(index, false, executor::kDynamo);
  const lazy::GraphLock lock;
  last_step_ = device.step;
  if (part_ == StepPart::Backward) device.step_of_backward = device.step;
}

bool Launching::at_once() const { return part_ == StepPart::None || is_eager_mode(); }

}  // namespace torch_xla::dispatch
