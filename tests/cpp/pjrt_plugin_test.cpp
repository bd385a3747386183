#include <string>

#include "pjrt/topology.h"
#include "pjrt_testing.h"

namespace torch_xla::pjrt::testing {
namespace {

std::string fake_plugin(int mode) {
  return std::string(TORCH_XLA_FAKE_PLUGINS) + "/fake_plugin_" + std::to_string(mode) + ".so";
}

TEST(PjrtPlugin, LoadsOncePerPath) {
  std::shared_ptr<Plugin> plugin = testing::plugin();
  EXPECT_EQ(plugin->api_major(), PJRT_API_MAJOR);
  EXPECT_GT(plugin->api_minor(), 0);
  EXPECT_EQ(plugin->path().front(), '/');
  EXPECT_EQ(Plugin::load(plugin->path()), plugin);
}

TEST(PjrtPlugin, Attributes) {
  const Options& attributes = plugin()->attributes();
  ASSERT_TRUE(attributes.contains("stablehlo_current_version"));
  auto version = std::get<std::vector<int64_t>>(attributes.at("stablehlo_current_version"));
  ASSERT_EQ(version.size(), 3u);
  EXPECT_GE(version[0], 1);
}

TEST(PjrtPlugin, Extensions) {
  const PJRT_Extension_Base* ffi = plugin()->find_extension(PJRT_Extension_Type_FFI);
  ASSERT_NE(ffi, nullptr);
  EXPECT_EQ(ffi->type, PJRT_Extension_Type_FFI);
  EXPECT_EQ(plugin()->find_extension(PJRT_Extension_Type_Triton), nullptr);
}

TEST(PjrtPlugin, MissingLibrary) {
  Error error = error_of([] { Plugin::load("/nowhere/plugin.so"); });
  EXPECT_EQ(error.code(), PJRT_Error_Code_NOT_FOUND);
  EXPECT_EQ(error.method(), "dlopen");
  EXPECT_HAS(error.what(), "[dlopen] NOT_FOUND: ");
  EXPECT_HAS(error.what(), "'/nowhere/plugin.so'");
  EXPECT_HAS(error.what(), "No such file");
  EXPECT_HAS(error.what(), "PJRT_LIBRARY_PATH");
}

TEST(PjrtPlugin, LibraryThatIsNoPlugin) {
  Error error = error_of([] { Plugin::load("libm.so.6"); });
  EXPECT_EQ(error.code(), PJRT_Error_Code_INVALID_ARGUMENT);
  EXPECT_HAS(error.what(), "'libm.so.6' is a shared library but no PJRT plugin");
}

TEST(PjrtPlugin, FileThatIsNoLibrary) {
  Error error = error_of([] { Plugin::load("/etc/passwd"); });
  EXPECT_EQ(error.code(), PJRT_Error_Code_NOT_FOUND);
  EXPECT_HAS(error.what(), "invalid ELF header");
}

TEST(PjrtPlugin, OtherMajorVersion) {
  Error error = error_of([] { Plugin::load(fake_plugin(1)); });
  EXPECT_EQ(error.code(), PJRT_Error_Code_UNIMPLEMENTED);
  EXPECT_HAS(error.what(), "speaks PJRT C API 1.");
  EXPECT_HAS(error.what(), "expected major version 0");
}

TEST(PjrtPlugin, OlderPluginNamesTheMissingMethod) {
  std::shared_ptr<Plugin> old = Plugin::load(fake_plugin(2));
  EXPECT_TRUE(old->has<&PJRT_Api::PJRT_Plugin_Initialize>());
  EXPECT_FALSE(old->has<&PJRT_Api::PJRT_Compile>());
  EXPECT_TRUE(old->attributes().empty());
  PJRT_Compile_Args args{};
  Error error = error_of([&] { old->call<&PJRT_Api::PJRT_Compile>(args); });
  EXPECT_EQ(error.code(), PJRT_Error_Code_UNIMPLEMENTED);
  EXPECT_EQ(error.method(), "PJRT_Compile");
  EXPECT_HAS(error.what(), "PJRT C API 0.7) does not have this method");
}

TEST(PjrtPlugin, MethodLeftOut) {
  // Inside the struct, but null.
  Error error = error_of([] { Client::create(Plugin::load(fake_plugin(5))); });
  EXPECT_EQ(error.code(), PJRT_Error_Code_UNIMPLEMENTED);
  EXPECT_EQ(error.method(), "PJRT_Client_Create");
}

TEST(PjrtPlugin, NoApi) {
  Error error = error_of([] { Plugin::load(fake_plugin(3)); });
  EXPECT_HAS(error.what(), "returned no usable PJRT_Api");
}

TEST(PjrtPlugin, FailingInitializationCanBeTriedAgain) {
  for (int i = 0; i < 2; ++i) {
    Error error = error_of([] { Plugin::load(fake_plugin(4)); });
    EXPECT_EQ(error.code(), PJRT_Error_Code_UNAVAILABLE);
    EXPECT_STREQ(error.what(), "[PJRT_Plugin_Initialize] UNAVAILABLE: no such hardware");
  }
}

TEST(PjrtPlugin, LargerNamedValuesOfANewerPlugin) {
  Options expected{{"zero", int64_t{0}}, {"one", int64_t{1}}, {"two", int64_t{2}}};
  EXPECT_EQ(Plugin::load(fake_plugin(5))->attributes(), expected);
}

TEST(PjrtPlugin, NamedValuesBothWays) {
  Options options{{"text", "a,b"},
                  {"integer", int64_t{-3}},
                  {"real", 0.5f},
                  {"truth", true},
                  {"list", std::vector<int64_t>{1, 2}},
                  {"nothing", std::vector<int64_t>{}}};
  std::vector<PJRT_NamedValue> values = to_named_values(options);
  EXPECT_EQ(read_named_values(values.data(), values.size()), options);
}

TEST(PjrtPlugin, ErrorCodesHaveNames) {
  EXPECT_STREQ(code_name(PJRT_Error_Code_RESOURCE_EXHAUSTED), "RESOURCE_EXHAUSTED");
  EXPECT_STREQ(code_name(PJRT_Error_Code_UNAUTHENTICATED), "UNAUTHENTICATED");
  EXPECT_STREQ(code_name(static_cast<PJRT_Error_Code>(99)), "UNKNOWN");
}

TEST(PjrtClient, PlatformAndDevices) {
  EXPECT_EQ(client()->platform_name(), "cpu");
  EXPECT_FALSE(client()->platform_version().empty());
  EXPECT_EQ(client()->process_index(), 0);
  ASSERT_EQ(client()->devices().size(), 4u);
  ASSERT_EQ(client()->addressable_devices().size(), 4u);
  for (int i = 0; i < 4; ++i) {
    Device device = client()->addressable_devices()[i];
    EXPECT_EQ(device.id(), i);
    EXPECT_EQ(device.process_index(), 0);
    EXPECT_EQ(device.local_hardware_id(), i);
    EXPECT_TRUE(device.addressable());
    EXPECT_EQ(device.kind(), "cpu");
    EXPECT_FALSE(device.debug_string().empty());
    EXPECT_EQ(client()->device_by_id(i), device);
  }
  Error error = error_of([] { client()->device_by_id(17); });
  EXPECT_HAS(error.what(), "one of the 4 devices of platform cpu, got 17");
}

TEST(PjrtClient, DeviceCountOption) {
  auto one = Client::create(plugin(), {{"cpu_device_count", int64_t{1}}});
  EXPECT_EQ(one->devices().size(), 1u);
  auto seven = Client::create(plugin(), {{"cpu_device_count", int64_t{7}}});
  EXPECT_EQ(seven->devices().size(), 7u);
}

TEST(PjrtClient, WrongOption) {
  Error error = error_of([] { Client::create(plugin(), {{"cpu_device_count", "four"}}); });
  EXPECT_EQ(error.code(), PJRT_Error_Code_INVALID_ARGUMENT);
  EXPECT_HAS(error.what(), "[PJRT_Client_Create] INVALID_ARGUMENT: ");
  EXPECT_HAS(error.what(), "cpu_device_count (string)");
}

TEST(PjrtClient, MemoryStatsWhereThePluginHasThem) {
  std::optional<MemoryStats> stats = device().memory_stats();
  if (stats) {
    EXPECT_GE(stats->bytes_in_use, 0);
  }
}

}  // namespace
}  // namespace torch_xla::pjrt::testing
