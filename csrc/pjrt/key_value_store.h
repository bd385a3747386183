// KeyValueStore, by which the processes of a job make one client: what a plugin puts there in one
// of them it gets in the others. Threads of the plugin call it, several at once, and not all of
// them may hold a lock of ours.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include <pjrt_c_api.h>

namespace torch_xla::pjrt {

// An exception of these becomes the plugin's error.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  virtual void put(const std::string& key, const std::string& value) = 0;
  // Waits until somebody has put the key; returns nullopt where nobody has by then.
  virtual std::optional<std::string> get(const std::string& key,
                                         std::chrono::milliseconds time_limit) = 0;
  // Does not wait.
  virtual std::optional<std::string> try_get(const std::string& key) = 0;
};

// Gives a client that is to be made this store, which has to live as long as the client.
void set_store(PJRT_Client_Create_Args& args, KeyValueStore& store);

}  // namespace torch_xla::pjrt
