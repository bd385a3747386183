#include "executor/step/spmd_mode.h"

#include "executor/run/runtime.h"
#include "executor/step/deferred.h"
#include "lazy/device.h"
#include "lazy/lock.h"
#include "util/error.h"

namespace torch_xla::executor {

bool use_spmd() {
  if (request_spmd()) return false;  // nothing has data yet
  Runtime& runtime = Runtime::get();
  if (runtime.spmd()) return false;
  const int count = runtime.device_count();
  finish_deferred();
  for (int i = 0; i < count; ++i) wait_for_runs(i);
  const lazy::GraphLock lock;
  for (int i = 1; i < count; ++i) {
    const int64_t tensors = lazy::Device::of(i).live_storages.load();
    TXLA_CHECK(tensors == 0, "use_spmd: expected tensors on xla:0 only, got ", tensors,
               " on xla:", i,
               ". Call it before tensors are made, or first move these with .to('xla:0') and let ",
               "them go.");
  }
  runtime.use_spmd();
  return count > 1 && lazy::Device::of(0).live_storages.load() != 0;
}

}  // namespace torch_xla::executor
