#include <future>

#include "pjrt_testing.h"
#include "xla/ffi/api/ffi.h"

namespace torch_xla::pjrt::testing {
namespace {

namespace ffi = xla::ffi;

ffi::Error scale(ffi::Buffer<ffi::F32> x, float factor, ffi::ResultBuffer<ffi::F32> y) {
  if (factor < 0) {
    return ffi::Error(ffi::ErrorCode::kOutOfRange, "scale: expected a factor of at least 0");
  }
  for (size_t i = 0; i < x.element_count(); ++i) y->typed_data()[i] = factor * x.typed_data()[i];
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(scale_handler, scale,
                       ffi::Ffi::Bind()
                           .Arg<ffi::Buffer<ffi::F32>>()
                           .Attr<float>("factor")
                           .Ret<ffi::Buffer<ffi::F32>>());

std::string scale_program(const std::string& target, const std::string& factor) {
  return R"(
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = stablehlo.custom_call @)" +
         target + R"((%x) {
    api_version = 4 : i32,
    backend_config = {factor = )" +
         factor + R"( : f32}
  } : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
})";
}

TEST(PjrtFfi, HandlerRunsInAProgram) {
  ASSERT_TRUE(register_ffi_handler(*plugin(), "torch_xla_test_scale",
                                   reinterpret_cast<void*>(scale_handler)));
  auto x = upload<float>({1, 2, 3, 4}, {4});
  PJRT_Buffer* arg = x->handle();

  auto executable = Executable::compile(*client(), scale_program("torch_xla_test_scale", "2.5"));
  auto result = executable->execute({&arg, 1});
  EXPECT_EQ(download<float>(*result.outputs[0]), (std::vector<float>{2.5, 5, 7.5, 10}));

  // The handler's error arrives with its code and text, at the run's event and at the output.
  auto failing = Executable::compile(*client(), scale_program("torch_xla_test_scale", "-1.0"));
  Error error = error_of([&] {
    auto failed = failing->execute({&arg, 1});
    failed.done.await();
  });
  EXPECT_EQ(error.code(), PJRT_Error_Code_OUT_OF_RANGE) << error.what();
  EXPECT_HAS(error.what(), "scale: expected a factor of at least 0");
  EXPECT_EQ(download<float>(*executable->execute({&arg, 1}).outputs[0])[0], 2.5f);
}

TEST(PjrtFfi, FailedRunPoisonsItsOutputs) {
  static const bool registered = register_ffi_handler(*plugin(), "torch_xla_test_scale_2",
                                                      reinterpret_cast<void*>(scale_handler));
  ASSERT_TRUE(registered);
  auto x = upload<float>({1, 2, 3, 4}, {4});
  PJRT_Buffer* arg = x->handle();
  auto failing = Executable::compile(*client(), scale_program("torch_xla_test_scale_2", "-1.0"));
  Error error = error_of([&] {
    auto failed = failing->execute({&arg, 1});
    download<float>(*failed.outputs[0]);
  });
  EXPECT_HAS(error.what(), "scale: expected a factor of at least 0");
}

// A short program runs, and fails, inside the call; one whose arguments are not ready runs later.
TEST(PjrtFfi, LaterFailureReachesTheCallback) {
  ASSERT_TRUE(register_ffi_handler(*plugin(), "torch_xla_test_scale_3",
                                   reinterpret_cast<void*>(scale_handler)));
  auto failing = Executable::compile(*client(), scale_program("torch_xla_test_scale_3", "-1.0"));
  auto x = buffer_of_later({4});
  PJRT_Buffer* arg = x->handle();
  auto failed = failing->execute({&arg, 1});

  // The plugin keeps the text of such a failure, not its code.
  std::promise<std::exception_ptr> failure;
  failed.done.on_ready([&](std::exception_ptr error) { failure.set_value(error); });
  auto future = failure.get_future();
  ASSERT_EQ(future.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  std::exception_ptr exception = future.get();
  ASSERT_NE(exception, nullptr);
  Error error = error_of([&] { std::rethrow_exception(exception); });
  EXPECT_EQ(error.method(), "PJRT_Event_OnReady");
  EXPECT_HAS(error.what(), "scale: expected a factor of at least 0");
  EXPECT_HAS(error_of([&] { download<float>(*failed.outputs[0]); }).what(), "scale: expected");
}

TEST(PjrtFfi, UnknownTarget) {
  Error error = error_of(
      [] { Executable::compile(*client(), scale_program("torch_xla_test_unknown", "1.0")); });
  EXPECT_HAS(error.what(), "torch_xla_test_unknown");
}

TEST(PjrtFfi, PluginWithoutTheExtension) {
  auto fake = Plugin::load(std::string(TORCH_XLA_FAKE_PLUGINS) + "/fake_plugin_2.so");
  EXPECT_FALSE(register_ffi_handler(*fake, "any", reinterpret_cast<void*>(scale_handler)));
}

}  // namespace
}  // namespace torch_xla::pjrt::testing
