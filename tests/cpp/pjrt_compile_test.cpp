#include <cstdint>

#include "pjrt/topology.h"
#include "pjrt_testing.h"

namespace torch_xla::pjrt::testing {
namespace {

std::string hex(const std::string& bytes) {
  std::string text;
  for (unsigned char byte : bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

// Asked anew; Plugin::attributes() are those of the load.
Options read_attributes(const Plugin& plugin) {
  PJRT_Plugin_Attributes_Args args{};
  plugin.call<&PJRT_Api::PJRT_Plugin_Attributes>(args);
  return read_named_values(args.attributes, args.num_attributes);
}

TEST(PjrtCompileOptions, WireFormat) {
  // Field 3 (build options, 15 bytes): 1 = -1, 4 = 1, 5 = 1.
  EXPECT_EQ(hex(CompileOptions{}.serialize()), "1a0f08ffffffffffffffffff0120012801");

  CompileOptions options;
  options.num_replicas = 2;
  options.num_partitions = 2;
  options.use_spmd = true;
  options.use_shardy = true;
  options.device_ids = {0, 1, 2, 300};
  options.allow_spmd_sharding_propagation_to_output = {true, false};
  options.env_overrides = {{"b", true}, {"f", 0.5f}, {"i", int64_t{-1}}, {"s", "text"}};
  EXPECT_EQ(hex(options.serialize()),
            "1a2b"
            "08ffffffffffffffffff01"
            "2002"
            "2802"
            "3001"
            // Device assignment: computation 0 on devices 0 and 2, computation 1 on 1 and 300.
            "4a11"
            "0802"
            "1002"
            "1a04"
            "0a020002"
            "1a05"
            "0a0301ac02"
            "62020100"
            "980101"
            "3a070a01621202"
            "1001"
            "3a0e0a0166120921"
            "000000000000e03f"
            "3a100a0169120b"
            "18ffffffffffffffffff01"
            "3a0b0a01731206"
            "0a0474657874");
}

TEST(PjrtCompileOptions, WrongValues) {
  CompileOptions options;
  options.device_ids = {0, 1};
  Error error = error_of([&] { options.serialize(); });
  EXPECT_EQ(error.code(), PJRT_Error_Code_INVALID_ARGUMENT);
  EXPECT_HAS(error.what(), "expected 1 replicas x 1 partitions = 1 devices, got 2");

  options = {};
  options.num_partitions = 0;
  EXPECT_HAS(error_of([&] { options.serialize(); }).what(),
             "at least one replica and one partition");

  options = {};
  options.env_overrides = {{"flag", std::vector<int64_t>{1}}};
  EXPECT_HAS(error_of([&] { options.serialize(); }).what(), "for 'flag', got a list");
}

TEST(PjrtCompile, ReportsWhatIsWrongWithTheProgram) {
  Error error = error_of([] {
    Executable::compile(
        *client(), "func.func @main() -> tensor<f32> { %0 = stablehlo.nonsense : tensor<f32> }");
  });
  EXPECT_EQ(error.method(), "PJRT_Client_Compile");
  EXPECT_HAS(error.what(), std::string("[PJRT_Client_Compile] ") + code_name(error.code()) + ": ");
  EXPECT_HAS(error.what(), "stablehlo.nonsense");
}

TEST(PjrtCompile, ReportsWrongTypes) {
  Error error = error_of([] {
    Executable::compile(*client(), R"(
func.func @main(%x: tensor<2xf32>, %y: tensor<3xf32>) -> tensor<2xf32> {
  %0 = stablehlo.add %x, %y : (tensor<2xf32>, tensor<3xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
})");
  });
  EXPECT_HAS(error.what(), "stablehlo.add");
}

TEST(PjrtCompile, UnknownFlag) {
  CompileOptions options;
  options.env_overrides = {{"xla_no_such_flag", true}};
  Error error = error_of([&] { Executable::compile(*client(), kAddOne, options); });
  EXPECT_HAS(error.what(), "xla_no_such_flag");
}

TEST(PjrtCompile, FlagsReachTheCompiler) {
  // XLA parses the value, so a wrong one is refused and a right one is not.
  CompileOptions options;
  options.env_overrides = {{"xla_cpu_enable_fast_math", "perhaps"}};
  EXPECT_EQ(error_of([&] { Executable::compile(*client(), kAddOne, options); }).code(),
            PJRT_Error_Code_INVALID_ARGUMENT);
  options.env_overrides = {{"xla_cpu_enable_fast_math", false},
                           {"xla_backend_optimization_level", int64_t{1}}};
  EXPECT_NE(Executable::compile(*client(), kAddOne, options), nullptr);
}

TEST(PjrtExecutable, Properties) {
  auto executable = Executable::compile(*client(), R"(
module @my_module {
  func.func @main(%x: tensor<64x64xf32>, %i: tensor<i1>)
      -> (tensor<64x64xf32>, tensor<i1>, tensor<64xbf16>) {
    %p = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]
        : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    %c = stablehlo.constant dense<1.0> : tensor<64xbf16>
    return %p, %i, %c : tensor<64x64xf32>, tensor<i1>, tensor<64xbf16>
  }
})");
  EXPECT_HAS(executable->name(), "my_module");
  EXPECT_EQ(executable->num_partitions(), 1u);
  ASSERT_EQ(executable->num_outputs(), 3u);
  ASSERT_EQ(executable->outputs().size(), 3u);
  EXPECT_EQ(executable->outputs()[0].dtype, PJRT_Buffer_Type_F32);
  EXPECT_EQ(executable->outputs()[0].dims, (std::vector<int64_t>{64, 64}));
  EXPECT_EQ(executable->outputs()[1].dtype, PJRT_Buffer_Type_PRED);
  EXPECT_TRUE(executable->outputs()[1].dims.empty());
  EXPECT_EQ(executable->outputs()[2].dtype, PJRT_Buffer_Type_BF16);
  ASSERT_EQ(executable->devices().size(), 1u);
  EXPECT_EQ(executable->devices()[0], device(0));

  Options cost = executable->cost_analysis();
  ASSERT_TRUE(cost.contains("flops"));
  EXPECT_GE(std::get<float>(cost.at("flops")), 2.0f * 64 * 64 * 64);
  ASSERT_TRUE(cost.contains("bytes accessed"));

  CompiledMemoryStats memory = executable->memory_stats().value();
  EXPECT_GE(memory.argument_bytes, 64 * 64 * 4);
  EXPECT_GE(memory.output_bytes, 64 * 64 * 4);
  EXPECT_EQ(memory.alias_bytes, 0);
}

TEST(PjrtExecutable, NoOutputs) {
  auto executable = Executable::compile(*client(), "func.func @main(%x: tensor<2xf32>) { return }");
  EXPECT_EQ(executable->num_outputs(), 0u);
  auto x = upload<float>({1, 2}, {2});
  PJRT_Buffer* arg = x->handle();
  auto result = executable->execute({&arg, 1});
  result.done.await();
  EXPECT_TRUE(result.outputs.empty());
}

TEST(PjrtExecutable, SerializedAndLoadedAgain) {
  auto first = Executable::compile(*client(), kAddOne);
  std::string serialized = first->serialize();
  EXPECT_FALSE(serialized.empty());
  first.reset();
  auto second = Executable::deserialize(*client(), serialized);
  ASSERT_EQ(second->outputs().size(), 1u);
  EXPECT_EQ(second->outputs()[0].dims, (std::vector<int64_t>{2, 3}));
  auto x = upload<float>({0, 1, 2, 3, 4, 5}, {2, 3});
  PJRT_Buffer* arg = x->handle();
  auto result = second->execute({&arg, 1});
  EXPECT_EQ(download<float>(*result.outputs[0]), (std::vector<float>{1, 2, 3, 4, 5, 6}));
}

TEST(PjrtExecutable, LoadedOnAnotherDevice) {
  const auto& devices = client()->addressable_devices();
  ASSERT_GT(devices.size(), 1u);
  CompileOptions options;
  options.device_ids = {devices[0].id()};
  const std::string serialized = Executable::compile(*client(), kAddOne, options)->serialize();
  EXPECT_EQ(Executable::deserialize(*client(), serialized)->devices(), std::vector{devices[0]});
  options.device_ids = {devices[1].id()};
  EXPECT_EQ(Executable::deserialize(*client(), serialized, options)->devices(),
            std::vector{devices[1]});
}

TEST(PjrtExecutable, BrokenSerializationIsRefused) {
  std::string serialized = Executable::compile(*client(), kAddOne)->serialize();
  EXPECT_EQ(error_of([&] { Executable::deserialize(*client(), "rubbish"); }).method(),
            "PJRT_Executable_DeserializeAndLoad");
  error_of(
      [&] { Executable::deserialize(*client(), serialized.substr(0, serialized.size() / 2)); });
}

TEST(PjrtExecutable, FingerprintsFollowThePrograms) {
  std::string first;
  try {
    first = Executable::compile(*client(), kAddOne)->fingerprint();
  } catch (const Error& error) {
    ASSERT_EQ(error.code(), PJRT_Error_Code_UNIMPLEMENTED);
    GTEST_SKIP() << "the plugin makes no fingerprints";
  }
  EXPECT_EQ(Executable::compile(*client(), kAddOne)->fingerprint(), first);
  EXPECT_NE(Executable::compile(*client(), "func.func @main() { return }")->fingerprint(), first);
}

// The CPU plugin compiles for clients only, so the fake one tells what it was asked.
TEST(PjrtTopology, CompilesAheadOfTime) {
  auto fake = Plugin::load(std::string(TORCH_XLA_FAKE_PLUGINS) + "/fake_plugin_6.so");
  auto topology = Topology::create(fake, "v5p:2x2", {{"slices", int64_t{3}}});
  EXPECT_EQ(topology->platform_name(), "v5p:2x2 slices=3");
  auto devices = topology->devices();
  ASSERT_EQ(devices.size(), 4u);
  EXPECT_EQ(devices[2].id, 2);
  EXPECT_EQ(devices[2].kind, "fake");

  CompileOptions options;
  options.num_partitions = 4;
  auto program = topology->compile("the program", options);
  EXPECT_EQ(program->name(), "mlir: the program");
  EXPECT_EQ(program->num_outputs(), 2u);
  EXPECT_TRUE(program->outputs().empty()) << "the fake plugin tells no output types";
  EXPECT_EQ(program->serialize(), options.serialize());
  // Its struct is shorter than this header's: what it does not know stays unset.
  EXPECT_EQ(program->memory_stats().value().temp_bytes, 5);
  EXPECT_EQ(program->memory_stats().value().peak_bytes, 0);
  EXPECT_EQ(error_of([&] { program->fingerprint(); }).code(), PJRT_Error_Code_UNIMPLEMENTED);
  EXPECT_TRUE(program->cost_analysis().empty()) << "it makes no estimates";
  // Each object was freed once.
  program.reset();
  topology.reset();
  EXPECT_EQ(std::get<int64_t>(read_attributes(*fake).at("live_objects")), 0);
}

TEST(PjrtTopology, UnknownName) {
  Error error = error_of([] { Topology::create(plugin(), "v99:1x1"); });
  EXPECT_EQ(error.method(), "PJRT_TopologyDescription_Create");
}

// A pod of 512 chips, none of them here.
TEST(PjrtTopology, Tpu) {
  const char* path = std::getenv("TPU_LIBRARY_PATH");
  if (path == nullptr) GTEST_SKIP() << "TPU_LIBRARY_PATH names no libtpu";
  setenv("TPU_SKIP_MDS_QUERY", "1", 0);
  setenv("TPU_ACCELERATOR_TYPE", "v5litepod-4", 0);
  setenv("TPU_WORKER_HOSTNAMES", "localhost", 0);
  auto topology = Topology::create(Plugin::load(path), "v5p:8x8x8");
  EXPECT_EQ(topology->platform_name(), "tpu");
  EXPECT_EQ(topology->devices().size(), 512u);
  CompileOptions options;
  options.num_partitions = 512;
  options.use_spmd = options.use_shardy = true;
  for (int i = 0; i < 512; ++i) options.device_ids.push_back(topology->devices()[i].id);
  auto program = topology->compile(kAddOne, options);
  EXPECT_EQ(program->num_partitions(), 512u);
  EXPECT_TRUE(program->cost_analysis().contains("optimal_seconds"));
  EXPECT_FALSE(program->serialize().empty());
}

}  // namespace
}  // namespace torch_xla::pjrt::testing
