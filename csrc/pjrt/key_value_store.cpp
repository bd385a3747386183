#include "pjrt/key_value_store.h"

#include <cstring>
#include <exception>

namespace torch_xla::pjrt {
namespace {

// The arguments of all three callbacks have these alike.
template <typename Args>
KeyValueStore& store_of(const Args* args) {
  return *static_cast<KeyValueStore*>(args->user_arg);
}

template <typename Args>
std::string key_of(const Args* args) {
  return {args->key, args->key_size};
}

template <typename Args>
PJRT_Error* failed(const Args* args, PJRT_Error_Code code, const std::string& why) {
  const std::string text = "key-value store, key '" + key_of(args) + "': " + why;
  return (*args->callback_error)(code, text.data(), text.size());
}

// The plugin copies the value and calls the deleter.
template <typename Args>
void give(Args* args, const std::string& value) {
  args->value = new char[value.size()];
  args->value_size = value.size();
  std::memcpy(args->value, value.data(), value.size());
  args->value_deleter_callback = [](char* bytes) { delete[] bytes; };
}

// No exception may leave a callback.
template <typename Args, typename Work>
PJRT_Error* guarded(Args* args, Work&& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    return failed(args, PJRT_Error_Code_UNAVAILABLE, error.what());
  }
}

PJRT_Error* put(PJRT_KeyValuePutCallback_Args* args) {
  return guarded(args, [&]() -> PJRT_Error* {
    store_of(args).put(key_of(args), {args->value, args->value_size});
    return nullptr;
  });
}

PJRT_Error* get(PJRT_KeyValueGetCallback_Args* args) {
  return guarded(args, [&]() -> PJRT_Error* {
    const std::chrono::milliseconds limit(args->timeout_in_ms);
    const std::optional<std::string> value = store_of(args).get(key_of(args), limit);
    if (!value) {
      return failed(args, PJRT_Error_Code_DEADLINE_EXCEEDED,
                    "expected a value within " + std::to_string(limit.count()) +
                        " ms, no process has put one");
    }
    give(args, *value);
    return nullptr;
  });
}

PJRT_Error* try_get(PJRT_KeyValueTryGetCallback_Args* args) {
  return guarded(args, [&]() -> PJRT_Error* {
    const std::optional<std::string> value = store_of(args).try_get(key_of(args));
    if (!value) return failed(args, PJRT_Error_Code_NOT_FOUND, "no process has put a value");
    give(args, *value);
    return nullptr;
  });
}

}  // namespace

void set_store(PJRT_Client_Create_Args& args, KeyValueStore& store) {
  args.kv_get_callback = get;
  args.kv_put_callback = put;
  args.kv_try_get_callback = try_get;
  args.kv_get_user_arg = args.kv_put_user_arg = args.kv_try_get_user_arg = &store;
}

}  // namespace torch_xla::pjrt
