#include <chrono>
#include <future>

#include "pjrt/gate.h"
#include "pjrt_testing.h"
#include "xla/ffi/api/ffi.h"

namespace torch_xla::pjrt::testing {
namespace {

namespace ffi = xla::ffi;

std::promise<void>* held = nullptr;

// Returns when the test lets it, in a minute at the latest.
ffi::Error hold(ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> y) {
  held->get_future().wait_for(std::chrono::seconds(60));
  for (size_t i = 0; i < x.element_count(); ++i) y->typed_data()[i] = 2 * x.typed_data()[i];
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(hold_handler, hold,
                       ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::F32>>().Ret<ffi::Buffer<ffi::F32>>());

std::unique_ptr<Executable> program_that_is_held() {
  static const bool registered =
      register_ffi_handler(*plugin(), "torch_xla_test_hold", reinterpret_cast<void*>(hold_handler));
  EXPECT_TRUE(registered);
  return Executable::compile(*client(), R"(
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = stablehlo.custom_call @torch_xla_test_hold(%x) {api_version = 4 : i32, backend_config = {}}
      : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
})");
}

TEST(PjrtGate, ALaunchBehindItReturnsBeforeTheRunIsDone) {
  const auto executable = program_that_is_held();
  const auto gate_program = Gate::make_program(*client(), executable->devices().at(0));
  EXPECT_TRUE(is_cheap(*executable));
  EXPECT_FALSE(is_cheap(*gate_program));
  auto x = upload<float>({1, 2, 3, 4}, {4});
  PJRT_Buffer* arg = x->handle();
  for (int i = 0; i < 3; ++i) {
    std::promise<void> may_go_on;
    held = &may_go_on;
    Executable::Result result;
    {
      const Gate gate(*client(), *gate_program);
      result = executable->execute({&arg, 1});
    }
    EXPECT_FALSE(result.done.ready());
    may_go_on.set_value();
    result.done.await();
    EXPECT_EQ(download<float>(*result.outputs[0]), (std::vector<float>{2, 4, 6, 8}));
  }
}

TEST(PjrtGate, WhatIsLaunchedBehindItWaitsForItsEnd) {
  const auto executable = Executable::compile(*client(), kAddOne);
  const auto gate_program = Gate::make_program(*client(), executable->devices().at(0));
  auto x = upload<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  PJRT_Buffer* arg = x->handle();
  std::vector<Executable::Result> results;
  {
    const Gate gate(*client(), *gate_program);
    for (int i = 0; i < 16; ++i) results.push_back(executable->execute({&arg, 1}));
    EXPECT_FALSE(results.front().done.ready());
  }
  for (const auto& result : results) {
    result.done.await();
    EXPECT_EQ(download<float>(*result.outputs[0])[0], 2);
  }
}

}  // namespace
}  // namespace torch_xla::pjrt::testing
