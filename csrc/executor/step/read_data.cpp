#include "executor/step/read_data.h"

#include <memory>

#include "executor/run/transfer.h"
#include "executor/step/deferred.h"
#include "lazy/lock.h"

namespace torch_xla::executor {

std::vector<at::Tensor> read_data(const std::vector<lazy::Value>& data, int device) {
  try {
    return download_data(data);
  } catch (const pjrt::Error& e) {
    fail_read(e, device);
  }
}

std::vector<std::pair<pjrt::Device, at::Tensor>> read_shards(const lazy::Value& data, int device) {
  try {
    return download_shards_of_data(data, device);
  } catch (const pjrt::Error& e) {
    fail_read(e, device);
  }
}

void split_data(const lazy::Value& data, int device, const spmd::Sharding* sharding) {
  std::shared_ptr<const void> host;
  {
    const lazy::GraphLock lock;
    const pjrt::Array& array = *data.node->data().array;
    if (array.is_deleted()) return;  // a run of another thread has taken it over meanwhile
    host = array.host_data();
  }
  if (host == nullptr) {
    const auto kept = std::make_shared<const at::Tensor>(read_data({data}, device)[0]);
    host = {kept, kept->const_data_ptr()};
  }
  split_on_host(data, std::move(host), sharding);
}

}  // namespace torch_xla::executor
