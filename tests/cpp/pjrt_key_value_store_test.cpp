#include <map>
#include <stdexcept>

#include "pjrt/key_value_store.h"
#include "pjrt_testing.h"

namespace torch_xla::pjrt::testing {
namespace {

class MapStore final : public KeyValueStore {
 public:
  void put(const std::string& key, const std::string& value) override {
    if (key == "lost") throw std::runtime_error("its process has ended");
    values[key] = value;
  }
  std::optional<std::string> get(const std::string& key,
                                 std::chrono::milliseconds time_limit) override {
    last_limit = time_limit;
    return try_get(key);
  }
  std::optional<std::string> try_get(const std::string& key) override {
    const auto found = values.find(key);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  }

  std::map<std::string, std::string> values;
  std::chrono::milliseconds last_limit{0};
};

struct Failed {
  PJRT_Error_Code code;
  std::string text;
};
std::unique_ptr<Failed> last_error;

PJRT_Error* note_error(PJRT_Error_Code code, const char* text, size_t size) {
  last_error = std::make_unique<Failed>(Failed{code, std::string(text, size)});
  return reinterpret_cast<PJRT_Error*>(last_error.get());
}
PJRT_CallbackError callback_error = note_error;

template <typename Args>
Args args_of(const std::string& key, void* user_arg) {
  Args args{};
  args.key = key.data();
  args.key_size = key.size();
  args.callback_error = &callback_error;
  args.user_arg = user_arg;
  return args;
}

TEST(PjrtKeyValueStore, ThePluginPutsAndGets) {
  MapStore store;
  PJRT_Client_Create_Args client{};
  set_store(client, store);
  const std::string value("a\0b", 3), key = "key";

  auto put = args_of<PJRT_KeyValuePutCallback_Args>(key, client.kv_put_user_arg);
  put.value = value.data();
  put.value_size = value.size();
  EXPECT_EQ(client.kv_put_callback(&put), nullptr);
  EXPECT_EQ(store.values.at("key"), value);

  auto get = args_of<PJRT_KeyValueGetCallback_Args>(key, client.kv_get_user_arg);
  get.timeout_in_ms = 1500;
  EXPECT_EQ(client.kv_get_callback(&get), nullptr);
  EXPECT_EQ(std::string(get.value, get.value_size), value);
  EXPECT_EQ(store.last_limit.count(), 1500);
  get.value_deleter_callback(get.value);

  auto try_get = args_of<PJRT_KeyValueTryGetCallback_Args>(key, client.kv_try_get_user_arg);
  EXPECT_EQ(client.kv_try_get_callback(&try_get), nullptr);
  EXPECT_EQ(std::string(try_get.value, try_get.value_size), value);
  try_get.value_deleter_callback(try_get.value);
}

TEST(PjrtKeyValueStore, FailuresAreThePluginsErrors) {
  MapStore store;
  PJRT_Client_Create_Args client{};
  set_store(client, store);
  const std::string none = "none", lost = "lost";

  auto get = args_of<PJRT_KeyValueGetCallback_Args>(none, client.kv_get_user_arg);
  get.timeout_in_ms = 20;
  EXPECT_NE(client.kv_get_callback(&get), nullptr);
  EXPECT_EQ(last_error->code, PJRT_Error_Code_DEADLINE_EXCEEDED);
  EXPECT_HAS(last_error->text, "key 'none': expected a value within 20 ms");

  auto try_get = args_of<PJRT_KeyValueTryGetCallback_Args>(none, client.kv_try_get_user_arg);
  EXPECT_NE(client.kv_try_get_callback(&try_get), nullptr);
  EXPECT_EQ(last_error->code, PJRT_Error_Code_NOT_FOUND);

  auto put = args_of<PJRT_KeyValuePutCallback_Args>(lost, client.kv_put_user_arg);
  EXPECT_NE(client.kv_put_callback(&put), nullptr);
  EXPECT_EQ(last_error->code, PJRT_Error_Code_UNAVAILABLE);
  EXPECT_HAS(last_error->text, "its process has ended");
}

std::shared_ptr<Plugin> pod_plugin() {
  return Plugin::load(std::string(TORCH_XLA_FAKE_PLUGINS) + "/pod_plugin.so");
}

TEST(PjrtKeyValueStore, AClientThatNeedsOneSaysSo) {
  const Error error = error_of([] { Client::create(pod_plugin()); });
  EXPECT_HAS(error.what(), "expected a key-value store and the options node_id and num_nodes");
}

TEST(PjrtKeyValueStore, AClientIsMadeByOne) {
  auto store = std::make_shared<MapStore>();
  store->values["devices/0"] = "3";  // the other process was here
  const auto made = Client::create(
      pod_plugin(),
      {{"node_id", int64_t{1}}, {"num_nodes", int64_t{2}}, {"cpu_device_count", int64_t{2}}},
      store);
  EXPECT_EQ(store->values.at("devices/1"), "2");
  EXPECT_EQ(made->devices().size(), 5);
  EXPECT_EQ(made->process_index(), 1);
  std::vector<int> mine, processes;
  for (const Device& device : made->addressable_devices()) mine.push_back(device.id());
  for (const Device& device : made->devices()) processes.push_back(device.process_index());
  EXPECT_EQ(mine, (std::vector<int>{3, 4}));
  EXPECT_EQ(processes, (std::vector<int>{0, 0, 0, 1, 1}));
}

}  // namespace
}  // namespace torch_xla::pjrt::testing
