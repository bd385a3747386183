// What the PJRT tests share: the plugin under test, one client with four devices, and typed
// transfers. The plugin is PJRT_LIBRARY_PATH, or the one whose headers the build uses.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "pjrt/client.h"
#include "pjrt/executable.h"

namespace torch_xla::pjrt::testing {

inline std::string plugin_path() {
  const char* path = std::getenv("PJRT_LIBRARY_PATH");
  return path != nullptr && *path != '\0' ? path : TORCH_XLA_TEST_PLUGIN;
}

inline std::shared_ptr<Plugin> plugin() { return Plugin::load(plugin_path()); }

// Made once, and never destroyed: the tests run until the process exits.
inline const std::shared_ptr<Client>& client() {
  static auto* client =
      new std::shared_ptr<Client>(Client::create(plugin(), {{"cpu_device_count", int64_t{4}}}));
  return *client;
}

inline Device device(int index = 0) { return client()->addressable_devices().at(index); }

template <typename T>
struct DTypeOf;
#define TORCH_XLA_TEST_DTYPE(TYPE, NAME)                    \
  template <>                                               \
  struct DTypeOf<TYPE> {                                    \
    static constexpr DType value = PJRT_Buffer_Type_##NAME; \
  };
TORCH_XLA_TEST_DTYPE(float, F32)
TORCH_XLA_TEST_DTYPE(double, F64)
TORCH_XLA_TEST_DTYPE(int32_t, S32)
TORCH_XLA_TEST_DTYPE(int64_t, S64)
#undef TORCH_XLA_TEST_DTYPE

template <typename T>
std::unique_ptr<Buffer> upload(const std::vector<T>& values, const std::vector<int64_t>& dims,
                               Device target = device()) {
  return Buffer::from_host(*client(), values.data(), DTypeOf<T>::value, dims, std::nullopt,
                           HostSemantics::ImmutableOnlyDuringCall, target);
}

template <typename T>
std::vector<T> download(const Buffer& buffer) {
  EXPECT_EQ(buffer.dtype(), DTypeOf<T>::value);
  std::vector<T> values(buffer.host_size() / sizeof(T));
  buffer.copy_to_host(values.data(), values.size() * sizeof(T)).await();
  return values;
}

// Runs `statement` and returns the Error that it throws.
template <typename Statement>
Error error_of(Statement&& statement) {
  try {
    statement();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "expected a pjrt::Error, nothing was thrown";
  return Error("none", PJRT_Error_Code_OK, "none");
}

#define EXPECT_HAS(TEXT, PART) \
  EXPECT_NE(std::string(TEXT).find(PART), std::string::npos) << "the text: " << (TEXT)

inline constexpr std::string_view kAddOne = R"(
func.func @main(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %one = stablehlo.constant dense<1.0> : tensor<2x3xf32>
  %sum = stablehlo.add %x, %one : tensor<2x3xf32>
  return %sum : tensor<2x3xf32>
})";

// A float array of up to 1024 elements that takes some milliseconds to compute: what uses it runs
// after its call has returned, where a short program would run inside the call.
inline std::shared_ptr<Buffer> buffer_of_later(const std::vector<int64_t>& dims) {
  size_t count = 1;
  std::string shape;
  for (int64_t dim : dims) {
    count *= dim;
    shape += std::to_string(dim) + "x";
  }
  const std::string type = "tensor<" + shape + "f32>",
                    row = "tensor<1x" + std::to_string(count) + "xf32>";
  auto executable = Executable::compile(*client(), R"(
func.func @main(%x: tensor<1024x1024xf32>) -> )" + type +
                                                       R"( {
  %y = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]
      : (tensor<1024x1024xf32>, tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
  %row = stablehlo.slice %y [0:1, 0:)" + std::to_string(count) +
                                                       R"(]
      : (tensor<1024x1024xf32>) -> )" + row + R"(
  %z = stablehlo.reshape %row : ()" + row + ") -> " + type +
                                                       R"(
  return %z : )" + type + R"(
})");
  auto x = upload(std::vector<float>(1 << 20, 1.0f), {1024, 1024});
  PJRT_Buffer* arg = x->handle();
  return executable->execute({&arg, 1}).outputs[0];
}

}  // namespace torch_xla::pjrt::testing
