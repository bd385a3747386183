#include "dispatch/replicas/job_store.h"

#include <mutex>
#include <utility>
#include <vector>

#include "executor/stored/tcp_store.h"
#include "util/lock_order.h"

namespace torch_xla::dispatch {
namespace {

using executor::text_of;
using Connection = c10::intrusive_ptr<c10d::TCPStore>;

class JobStore final : public pjrt::KeyValueStore {
 public:
  JobStore(std::string host, uint16_t port, std::string prefix)
      : host_(std::move(host)), port_(port), prefix_(std::move(prefix)) {}

  void put(const std::string& key, const std::string& value) override {
    const Connection connection = take();
    connection->set(prefix_ + key, executor::bytes_of(value));
    give_back(connection);
  }

  std::optional<std::string> get(const std::string& key,
                                 std::chrono::milliseconds time_limit) override {
    const Connection connection = take();
    try {
      connection->wait({prefix_ + key}, time_limit);
    } catch (const c10::DistStoreError&) {
      return std::nullopt;
    }
    std::string value = text_of(connection->get(prefix_ + key));
    give_back(connection);
    return value;
  }

  std::optional<std::string> try_get(const std::string& key) override {
    const Connection connection = take();
    std::optional<std::string> value;
    if (connection->check({prefix_ + key})) value = text_of(connection->get(prefix_ + key));
    give_back(connection);
    return value;
  }

 private:
  // A call that waits keeps its connection, so each has one for itself. One that has failed is
  // not given back.
  Connection take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        Connection connection = std::move(free_.back());
        free_.pop_back();
        return connection;
      }
    }
    return executor::connect_to_store(host_, port_);
  }

  void give_back(Connection connection) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(connection));
  }

  const std::string host_;
  const uint16_t port_;
  const std::string prefix_;
  util::Mutex mutex_{util::Rank::Section};
  std::vector<Connection> free_;
};

}  // namespace

std::shared_ptr<pjrt::KeyValueStore> job_store(std::string host, uint16_t port,
                                               std::string prefix) {
  return std::make_shared<JobStore>(std::move(host), port, std::move(prefix));
}

}  // namespace torch_xla::dispatch
