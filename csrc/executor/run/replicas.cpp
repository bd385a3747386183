#include "executor/run/replicas.h"

#include <algorithm>
#include <map>
#include <vector>

#include "executor/run/runtime.h"
#include "util/error.h"

namespace torch_xla::executor {

pjrt::Devices replicas_of(int device) {
  Runtime& runtime = Runtime::get();
  TXLA_CHECK_KIND(util::ErrorKind::Value, !runtime.spmd(),
                  "replicas: expected one device a process, got SPMD mode, where all ",
                  "devices of the job run one program. Use manual tensors there.");
  const std::vector<pjrt::Device>& mine = runtime.client().addressable_devices();
  const auto place = std::ranges::find(mine, runtime.devices(device).mine[0]) - mine.begin();
  std::map<int, std::vector<pjrt::Device>> of_process;
  for (const pjrt::Device& d : runtime.client().devices())
    of_process[d.process_index()].push_back(d);
  std::vector<pjrt::Device> replicas;
  for (const auto& [process, devices] : of_process) {
    TXLA_CHECK(place < std::ssize(devices),
               "replicas: expected a device of each process as xla:", device, ", got ",
               devices.size(), " devices of process ", process, ".");
    replicas.push_back(devices[static_cast<size_t>(place)]);
  }
  return pjrt::Devices(std::move(replicas));
}

}  // namespace torch_xla::executor
