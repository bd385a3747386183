// Devices of a job, of which this process addresses the second half (tests/cpp/half_plugin).
#include <numeric>

#include "pjrt_testing.h"
#include "spmd/place.h"
#include "spmd/sharding.h"

namespace torch_xla::pjrt::testing {
namespace {

using Dims = std::vector<int64_t>;

const Client& second_of_two() {
  static const auto client = [] {
    ::setenv("HALF_PLUGIN_PROCESS", "1", 1);
    return Client::create(Plugin::load(std::string(TORCH_XLA_FAKE_PLUGINS) + "/half_plugin.so"),
                          {{"cpu_device_count", int64_t{8}}});
  }();
  return *client;
}

Dims counted(int64_t n) {
  Dims all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), int64_t{0});
  return all;
}

std::vector<float> contents(const Buffer& buffer) {
  std::vector<float> values(buffer.host_size() / sizeof(float));
  buffer.copy_to_host(values.data(), values.size() * sizeof(float)).await();
  return values;
}

// An array of 0, 1, 2, ... on the devices of this process.
Array sent(const Dims& dims, const spmd::Sharding* sharding, size_t* bytes = nullptr) {
  int64_t count = 1;
  for (const int64_t size : dims) count *= size;
  auto values = std::make_shared<std::vector<float>>(static_cast<size_t>(count));
  std::iota(values->begin(), values->end(), 0.0f);
  const std::shared_ptr<const void> data(values, values->data());
  Array array = Array::on_host(second_of_two(), data, PJRT_Buffer_Type_F32, dims, sharding);
  const size_t of_upload = array.extend_to(Devices(second_of_two().devices()));
  if (bytes != nullptr) *bytes = of_upload;
  return array;
}

TEST(PjrtDevices, KnowsAllAndThoseOfThisProcess) {
  const Devices devices(second_of_two().devices());
  EXPECT_EQ(devices.all.size(), 8u);
  EXPECT_EQ(devices.mine.size(), 4u);
  EXPECT_EQ(devices.positions, (Dims{4, 5, 6, 7}));
  EXPECT_EQ(second_of_two().process_index(), 1);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(devices.all[i].process_index(), i < 4 ? 0 : 1);
  for (const Device& device : devices.mine) EXPECT_TRUE(device.addressable());
}

TEST(PjrtDevices, AnArrayHasThePartsOfThisProcess) {
  size_t bytes = 0;
  const spmd::Mesh* line = spmd::Mesh::of({"x"}, {8}, counted(8));
  const Array rows = sent({16, 2}, spmd::Sharding::of(line, {{{0, 1, 8}}, {}}), &bytes);
  EXPECT_EQ(bytes, 4 * 4 * sizeof(float));
  ASSERT_EQ(rows.num_buffers(), 4u);
  EXPECT_EQ(rows.dims(), (Dims{16, 2}));
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(rows.buffer(i).dims(), (Dims{2, 2}));
    const float first = 16 + 4 * static_cast<float>(i);
    EXPECT_EQ(contents(rows.buffer(i)),
              (std::vector<float>{first, first + 1, first + 2, first + 3}));
  }

  // 13 elements in parts of two: the last device has padding alone.
  const Array uneven = sent({13}, spmd::Sharding::of(line, {{{0, 1, 8}}}));
  const std::vector<std::vector<float>> expected = {{8, 9}, {10, 11}, {12, 0}, {0, 0}};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(contents(uneven.buffer(i)), expected[i]);

  // Along an axis within each process, every process has the whole.
  const spmd::Mesh* grid = spmd::Mesh::of({"process", "device"}, {2, 4}, counted(8));
  const Array columns = sent({2, 4}, spmd::Sharding::of(grid, {{}, {{1, 1, 4}}}));
  for (size_t i = 0; i < 4; ++i) {
    const float first = static_cast<float>(i);
    EXPECT_EQ(contents(columns.buffer(i)), (std::vector<float>{first, first + 4}));
  }

  const Array whole = sent({3}, nullptr, &bytes);
  EXPECT_EQ(bytes, 4 * 3 * sizeof(float));
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(contents(whole.buffer(i)), (std::vector<float>{0, 1, 2}));
  }
}

TEST(PjrtDevices, AProgramOfAllRunsOnThoseOfThisProcess) {
  const Devices devices(second_of_two().devices());
  const spmd::Mesh* line = spmd::Mesh::of({"x"}, {8}, counted(8));
  const Array x = sent({16}, spmd::Sharding::of(line, {{{0, 1, 8}}}));
  CompileOptions options;
  options.set_devices(devices, Over::Partitions);
  EXPECT_EQ(options.num_partitions, 8);
  options.use_shardy = true;
  const auto executable = Executable::compile(second_of_two(), R"(
module {
  sdy.mesh @mesh = <["x"=8]>
  func.func @main(%x: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<f32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<16xf32>, tensor<f32>) -> tensor<f32>
    return %sum : tensor<f32>
  }
})",
                                              options);
  EXPECT_EQ(executable->devices(), devices.mine);
  const Array* const arguments[] = {&x};
  const auto result = executable->execute(arguments);
  ASSERT_EQ(result.outputs[0]->num_buffers(), 4u);
  for (size_t i = 0; i < 4; ++i) {  // the other process holds 8, ..., 15 too
    EXPECT_EQ(contents(result.outputs[0]->buffer(i)), std::vector<float>{2 * 92});
  }
}

TEST(PjrtDevices, HoldersAreAmongThoseOfThisProcess) {
  const spmd::Mesh* grid = spmd::Mesh::of({"a", "b"}, {4, 2}, counted(8));
  const Dims mine = {4, 5, 6, 7};
  const spmd::Sharding* by_b = spmd::Sharding::of(grid, {{{1, 1, 2}}});
  EXPECT_EQ(spmd::holders_of(*by_b, counted(8)), (Dims{0, 1}));
  EXPECT_EQ(spmd::holders_of(*by_b, mine), (Dims{4, 5}));
  EXPECT_EQ(by_b->num_parts(), 2u);
  const spmd::Sharding* by_a = spmd::Sharding::of(grid, {{{0, 1, 4}}});
  EXPECT_EQ(spmd::holders_of(*by_a, mine), (Dims{4, 6}));  // of four parts
}

}  // namespace
}  // namespace torch_xla::pjrt::testing
