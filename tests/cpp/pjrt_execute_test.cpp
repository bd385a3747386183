#include <atomic>
#include <barrier>
#include <numeric>
#include <thread>

#include "pjrt_testing.h"

namespace torch_xla::pjrt::testing {
namespace {

std::vector<PJRT_Buffer*> handles(std::initializer_list<const Buffer*> buffers) {
  std::vector<PJRT_Buffer*> result;
  for (const Buffer* buffer : buffers) result.push_back(buffer->handle());
  return result;
}

TEST(PjrtExecute, OneOutput) {
  auto executable = Executable::compile(*client(), kAddOne);
  auto x = upload<float>({0, 1, 2, 3, 4, 5}, {2, 3});
  auto result = executable->execute(handles({x.get()}));
  result.done.await();
  EXPECT_TRUE(result.done.ready());
  ASSERT_EQ(result.outputs.size(), 1u);
  const Buffer& output = *result.outputs[0];
  EXPECT_EQ(output.dtype(), PJRT_Buffer_Type_F32);
  EXPECT_EQ(output.dims(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(output.device(), device(0));
  EXPECT_EQ(download<float>(output), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_FALSE(x->is_deleted());
}

TEST(PjrtExecute, SeveralOutputsOfSeveralTypes) {
  auto executable = Executable::compile(*client(), R"(
func.func @main(%x: tensor<3xf32>, %y: tensor<3xf32>)
    -> (tensor<3xf32>, tensor<f32>, tensor<3xi32>) {
  %sum = stablehlo.add %x, %y : tensor<3xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %total = stablehlo.reduce(%sum init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<3xf32>, tensor<f32>) -> tensor<f32>
  %integers = stablehlo.convert %sum : (tensor<3xf32>) -> tensor<3xi32>
  return %sum, %total, %integers : tensor<3xf32>, tensor<f32>, tensor<3xi32>
})");
  auto x = upload<float>({1, 2, 3}, {3}), y = upload<float>({10, 20, 30}, {3});
  auto result = executable->execute(handles({x.get(), y.get()}));
  ASSERT_EQ(result.outputs.size(), 3u);
  EXPECT_EQ(download<float>(*result.outputs[0]), (std::vector<float>{11, 22, 33}));
  EXPECT_EQ(download<float>(*result.outputs[1]), std::vector<float>{66});
  EXPECT_EQ(download<int32_t>(*result.outputs[2]), (std::vector<int32_t>{11, 22, 33}));
}

TEST(PjrtExecute, OutputsFeedTheNextRunBeforeTheyAreReady) {
  auto executable = Executable::compile(*client(), kAddOne);
  std::shared_ptr<Buffer> x = upload<float>(std::vector<float>(6), {2, 3});
  for (int i = 0; i < 100; ++i) {
    x = executable->execute(handles({x.get()})).outputs[0];
  }
  EXPECT_EQ(download<float>(*x), std::vector<float>(6, 100.0f));
}

// The CPU plugin behind an API of 2023, which knows neither the outputs' types nor memory analysis.
TEST(PjrtExecute, OldPlugin) {
  auto old = Plugin::load(std::string(TORCH_XLA_FAKE_PLUGINS) + "/fake_plugin_7.so");
  EXPECT_EQ(old->api_minor(), 28);
  auto own = Client::create(old, {{"cpu_device_count", int64_t{1}}});
  auto executable = Executable::compile(*own, kAddOne);
  EXPECT_EQ(executable->num_outputs(), 1u);
  EXPECT_TRUE(executable->outputs().empty());
  EXPECT_FALSE(executable->memory_stats().has_value());
  Error error = error_of([&] { executable->fingerprint(); });
  EXPECT_EQ(error.code(), PJRT_Error_Code_UNIMPLEMENTED);
  EXPECT_EQ(error.method(), "PJRT_LoadedExecutable_Fingerprint");

  std::vector<float> values(6, 1.0f);
  auto x = Buffer::from_host(*own, values.data(), PJRT_Buffer_Type_F32, std::vector<int64_t>{2, 3},
                             std::nullopt, HostSemantics::ImmutableOnlyDuringCall,
                             own->addressable_devices()[0]);
  auto result = executable->execute(handles({x.get()}));
  EXPECT_EQ(result.outputs[0]->dims(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(download<float>(*result.outputs[0]), std::vector<float>(6, 2.0f));
}

constexpr std::string_view kAddOneInPlace = R"(
func.func @main(%x: tensor<1024xf32> {tf.aliasing_output = 0 : i32}) -> tensor<1024xf32> {
  %one = stablehlo.constant dense<1.0> : tensor<1024xf32>
  %sum = stablehlo.add %x, %one : tensor<1024xf32>
  return %sum : tensor<1024xf32>
})";

TEST(PjrtExecute, DonatedArgumentIsReused) {
  auto executable = Executable::compile(*client(), kAddOneInPlace);
  EXPECT_EQ(executable->memory_stats().value().alias_bytes, 4096);
  auto x = upload(std::vector<float>(1024, 1.0f), {1024});
  x->ready().await();
  void* address = x->unsafe_pointer();
  auto result = executable->execute(handles({x.get()}));
  result.done.await();
  EXPECT_TRUE(x->is_deleted());
  EXPECT_EQ(result.outputs[0]->unsafe_pointer(), address);
  EXPECT_EQ(download<float>(*result.outputs[0])[7], 2.0f);
  // A donated buffer is no argument any more.
  Error error = error_of([&] { executable->execute(handles({x.get()})); });
  EXPECT_HAS(error.what(), "donated");
}

TEST(PjrtExecute, SharedMemoryIsNotReusedUntilItIsGivenBack) {
  auto executable = Executable::compile(*client(), kAddOneInPlace);
  auto x = upload(std::vector<float>(1024, 1.0f), {1024});
  x->ready().await();
  const auto* data = static_cast<const float*>(x->share());
  EXPECT_EQ(data, x->unsafe_pointer());
  auto result = executable->execute(handles({x.get()}));
  result.done.await();
  EXPECT_EQ(data[7], 1.0f);
  EXPECT_EQ(download<float>(*result.outputs[0])[7], 2.0f);
  x->unshare();
  result = executable->execute(handles({x.get()}));
  result.done.await();
  EXPECT_EQ(result.outputs[0]->unsafe_pointer(), data);
}

TEST(PjrtExecute, NonDonatableArgumentIsKept) {
  auto executable = Executable::compile(*client(), kAddOneInPlace);
  auto x = upload(std::vector<float>(1024, 1.0f), {1024});
  const int64_t keep[] = {0};
  auto result = executable->execute(handles({x.get()}), keep);
  result.done.await();
  EXPECT_FALSE(x->is_deleted());
  EXPECT_EQ(download<float>(*x)[7], 1.0f);
  EXPECT_EQ(download<float>(*result.outputs[0])[7], 2.0f);
}

TEST(PjrtExecute, ZeroCopyArgumentIsNotWrittenThroughDonation) {
  auto executable = Executable::compile(*client(), kAddOneInPlace);
  auto* data = static_cast<float*>(std::aligned_alloc(64, 4096));
  std::fill_n(data, 1024, 1.0f);
  auto x = Buffer::from_host(*client(), data, PJRT_Buffer_Type_F32, std::vector<int64_t>{1024},
                             std::nullopt, HostSemantics::ZeroCopy, device(),
                             [data] { std::free(data); });
  const int64_t keep[] = {0};
  auto result = executable->execute(handles({x.get()}), keep);
  EXPECT_EQ(download<float>(*result.outputs[0])[0], 2.0f);
  EXPECT_EQ(data[0], 1.0f);
}

TEST(PjrtExecute, WrongArgumentsAreNamed) {
  auto executable = Executable::compile(*client(), kAddOne);
  Error none = error_of([&] { executable->execute(std::span<PJRT_Buffer* const>()); });
  EXPECT_EQ(none.code(), PJRT_Error_Code_INVALID_ARGUMENT);
  EXPECT_EQ(none.method(), "PJRT_LoadedExecutable_Execute");

  auto small = upload<float>({1}, {1});
  Error wrong_size = error_of([&] {
    auto result = executable->execute(handles({small.get()}));
    result.done.await();
  });
  EXPECT_EQ(wrong_size.code(), PJRT_Error_Code_INVALID_ARGUMENT);
  // The executable is as good as before.
  auto x = upload<float>(std::vector<float>(6), {2, 3});
  EXPECT_EQ(download<float>(*executable->execute(handles({x.get()})).outputs[0])[0], 1.0f);
}

constexpr std::string_view kTooLarge = R"(
func.func @main(%x: tensor<f32>) -> tensor<1048576x1048576x64xf32> {
  %big = stablehlo.broadcast_in_dim %x, dims = [] : (tensor<f32>) -> tensor<1048576x1048576x64xf32>
  return %big : tensor<1048576x1048576x64xf32>
})";

TEST(PjrtExecute, OutOfMemoryIsReportedAndSurvived) {
  auto executable = Executable::compile(*client(), kTooLarge);
  std::shared_ptr<Buffer> now = upload<float>({1}, {}), later = buffer_of_later({});
  for (const auto& x : {now, later}) {
    Error error = error_of([&] { executable->execute(handles({x.get()})).done.await(); });
    EXPECT_EQ(error.code(), PJRT_Error_Code_RESOURCE_EXHAUSTED) << error.what();
    EXPECT_HAS(error.what(), "Out of memory");
  }
  auto add = Executable::compile(*client(), kAddOne);
  auto y = upload<float>(std::vector<float>(6), {2, 3});
  EXPECT_EQ(download<float>(*add->execute(handles({y.get()})).outputs[0])[0], 1.0f);
}

TEST(PjrtExecute, FailureReachesWhatDependsOnIt) {
  auto too_large = Executable::compile(*client(), kTooLarge);
  auto first = Executable::compile(*client(), R"(
func.func @main(%x: tensor<1048576x1048576x64xf32>) -> tensor<f32> {
  %row = stablehlo.slice %x [0:1, 0:1, 0:1]
      : (tensor<1048576x1048576x64xf32>) -> tensor<1x1x1xf32>
  %y = stablehlo.reshape %row : (tensor<1x1x1xf32>) -> tensor<f32>
  return %y : tensor<f32>
})");
  auto x = buffer_of_later({});
  auto big = too_large->execute(handles({x.get()})).outputs[0];
  auto result = first->execute(handles({big.get()}));
  Error at_run = error_of([&] { result.done.await(); });
  Error at_output = error_of([&] { download<float>(*result.outputs[0]); });
  for (const Error& error : {at_run, at_output}) {
    EXPECT_EQ(error.code(), PJRT_Error_Code_RESOURCE_EXHAUSTED) << error.what();
  }
}

TEST(PjrtExecute, ChosenDevice) {
  CompileOptions options;
  options.device_ids = {2};
  auto fixed = Executable::compile(*client(), kAddOne, options);
  ASSERT_EQ(fixed->devices().size(), 1u);
  EXPECT_EQ(fixed->devices()[0], device(2));
  auto x = upload<float>(std::vector<float>(6), {2, 3}, device(2));
  EXPECT_EQ(fixed->execute(handles({x.get()})).outputs[0]->device(), device(2));
}

TEST(PjrtExecute, PortableProgramRunsWhereItIsTold) {
  CompileOptions options;
  options.portable = true;
  auto executable = Executable::compile(*client(), kAddOne, options);
  for (int i = 0; i < 4; ++i) {
    auto x = upload<float>(std::vector<float>(6, float(i)), {2, 3}, device(i));
    auto result = executable->execute(handles({x.get()}), {}, device(i));
    EXPECT_EQ(result.outputs[0]->device(), device(i));
    EXPECT_EQ(download<float>(*result.outputs[0])[0], i + 1.0f);
  }
}

// Shardy splits the rows over two devices, each of which returns its half.
TEST(PjrtExecute, PartitionsRunTogether) {
  CompileOptions options;
  options.num_partitions = 2;
  options.use_spmd = options.use_shardy = true;
  options.device_ids = {0, 1};
  auto executable = Executable::compile(*client(), R"(
module @sharded {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%a: tensor<4x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
      -> (tensor<4x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
          tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>}) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %total = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [0, 1]
        : (tensor<4x3xf32>, tensor<f32>) -> tensor<f32>
    %twice = stablehlo.add %a, %a : tensor<4x3xf32>
    return %twice, %total : tensor<4x3xf32>, tensor<f32>
  }
})",
                                        options);
  EXPECT_EQ(executable->num_partitions(), 2u);
  ASSERT_EQ(executable->devices().size(), 2u);
  // The types are those of one device's part.
  ASSERT_EQ(executable->outputs().size(), 2u);
  EXPECT_EQ(executable->outputs()[0].dims, (std::vector<int64_t>{2, 3}));
  std::vector<float> ones(6, 1.0f), tens(6, 10.0f);
  Array rows(std::move(*upload(ones, {2, 3}, device(0))));
  rows.add(std::move(*upload(tens, {2, 3}, device(1))));
  const Array* arg = &rows;
  auto result = executable->execute({&arg, 1});
  ASSERT_EQ(result.outputs.size(), 2u);
  ASSERT_EQ(result.done.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    result.done[i].await();
    EXPECT_EQ(result.outputs[0]->buffer(i).device(), device(i));
    EXPECT_EQ(download<float>(result.outputs[0]->buffer(i)),
              std::vector<float>(6, i ? 20.0f : 2.0f));
    EXPECT_EQ(download<float>(result.outputs[1]->buffer(i)), std::vector<float>{66.0f});
  }
  const Array upper(std::move(*upload(ones, {2, 3}, device(0))));
  arg = &upper;
  EXPECT_HAS(error_of([&] { executable->execute({&arg, 1}); }).what(),
             "expected argument 0 on 2 devices, got it on 1");
}

// Without annotations each device computes everything, on its own copy, which it may donate.
TEST(PjrtExecute, PartitionsWithoutShardingAreReplicas) {
  CompileOptions options;
  options.num_partitions = 4;
  options.use_spmd = options.use_shardy = true;
  options.device_ids = {0, 1, 2, 3};
  auto executable = Executable::compile(*client(), kAddOneInPlace, options);
  const auto& devices = client()->addressable_devices();
  const std::vector<float> values(1024, 1.0f);
  const std::vector<int64_t> dims = {1024};
  const auto upload_all = [&](std::span<const Device> to) {
    return Array::from_host(*client(), values.data(), PJRT_Buffer_Type_F32, dims, to);
  };
  Array everywhere = upload_all(devices), copied = upload_all(std::span(devices).first(1));
  copied.extend_to(Devices(devices));
  for (Array* x : {&everywhere, &copied}) {
    ASSERT_EQ(x->num_buffers(), 4u);
    const Array* arg = x;
    auto result = executable->execute({&arg, 1});
    for (int i = 0; i < 4; ++i) {
      result.done[i].await();
      EXPECT_TRUE(x->buffer(i).is_deleted());
      const Buffer& output = result.outputs[0]->buffer(i);
      EXPECT_EQ(output.device(), device(i));
      EXPECT_EQ(download<float>(output), std::vector<float>(1024, 2.0f));
    }
  }
  const Devices last({devices.end() - 2, devices.end()});
  const Array moved = upload_all(std::span(devices).first(1)).copy_to(last);
  EXPECT_EQ(moved.num_buffers(), 2u);
  EXPECT_EQ(moved.buffer(1).device(), device(3));
  EXPECT_EQ(download<float>(moved.buffer(1)), values);
}

TEST(PjrtExecute, ReplicasLaunchedFromTheirOwnThreads) {
  constexpr int kReplicas = 4;
  CompileOptions options;
  options.num_replicas = kReplicas;
  options.device_ids = {0, 1, 2, 3};
  auto executable = Executable::compile(*client(), R"(
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %sum = "stablehlo.all_reduce"(%x) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %c : tensor<f32>
  }) {replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>} : (tensor<f32>) -> tensor<f32>
  return %sum : tensor<f32>
})",
                                        options);
  std::vector<float> sums(kReplicas);
  std::vector<std::thread> threads;
  for (int i = 0; i < kReplicas; ++i) {
    threads.emplace_back([&, i] {
      auto x = upload<float>({float(1 << i)}, {}, device(i));
      sums[i] =
          download<float>(*executable->execute(handles({x.get()}), {}, device(i)).outputs[0])[0];
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(sums, std::vector<float>(kReplicas, 15.0f));
}

TEST(PjrtExecute, ManyThreadsShareOneClient) {
  constexpr int kThreads = 8, kRuns = 50;
  auto executable = Executable::compile(*client(), kAddOne);
  std::atomic<int> wrong{0};
  std::barrier start(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      if (t == 0) Executable::compile(*client(), kAddOneInPlace);
      std::shared_ptr<Buffer> x = upload<float>(std::vector<float>(6, t), {2, 3});
      for (int i = 0; i < kRuns; ++i) x = executable->execute(handles({x.get()})).outputs[0];
      if (download<float>(*x) != std::vector<float>(6, t + kRuns)) ++wrong;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(PjrtExecute, OneBufferSharedByThreads) {
  auto executable = Executable::compile(*client(), kAddOne);
  std::shared_ptr<Buffer> shared = upload<float>(std::vector<float>(6, 5.0f), {2, 3});
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, mine = shared] {
      for (int i = 0; i < 50; ++i) {
        auto output = executable->execute(handles({mine.get()})).outputs[0];
        if (download<float>(*output)[0] != 6.0f) ++wrong;
      }
    });
  }
  shared.reset();
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace torch_xla::pjrt::testing
