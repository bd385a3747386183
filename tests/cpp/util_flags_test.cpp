#include <cstdlib>
#include <set>
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include "util/error.h"
#include "util/flags.h"

namespace torch_xla::util {
namespace {

static_assert(std::is_same_v<decltype(flag::XLA_SYNC_WAIT()), bool>);
static_assert(std::is_same_v<decltype(flag::CPU_NUM_DEVICES()), std::int64_t>);
static_assert(std::is_same_v<decltype(flag::PJRT_DEVICE()), std::string>);

// Leaves the environment as it was.
class ScopedEnvironment {
 public:
  ScopedEnvironment(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) {
      old_ = old;
      had_ = true;
    }
    if (value != nullptr) {
      setenv(name, value, 1);
    } else {
      unsetenv(name);
    }
  }
  ~ScopedEnvironment() {
    if (had_) {
      setenv(name_, old_.c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::string old_;
  bool had_ = false;
};

std::string error_of(auto read) {
  try {
    read();
  } catch (const Error& error) {
    return (error.kind() == ErrorKind::Value ? "Value|" : "another kind|") +
           std::string(error.what());
  }
  return "no error";
}

TEST(Flags, AreReadWhenUsed) {
  ScopedEnvironment unset("XLA_SYNC_WAIT", nullptr);
  EXPECT_FALSE(flag::XLA_SYNC_WAIT());
  setenv("XLA_SYNC_WAIT", "1", 1);
  EXPECT_TRUE(flag::XLA_SYNC_WAIT());
  setenv("XLA_SYNC_WAIT", "0", 1);
  EXPECT_FALSE(flag::XLA_SYNC_WAIT());
}

TEST(Flags, UnsetAndEmptyGiveTheDefault) {
  for (const char* value : {static_cast<const char*>(nullptr), ""}) {
    ScopedEnvironment size("XLA_COMPILATION_CACHE_SIZE", value);
    ScopedEnvironment device("PJRT_DEVICE", value);
    EXPECT_EQ(flag::XLA_COMPILATION_CACHE_SIZE(), 2048);
    EXPECT_EQ(flag::PJRT_DEVICE(), "");
  }
}

TEST(Flags, AnOptionalStringMayBeGivenAsEmpty) {
  ScopedEnvironment path("XLA_PERSISTENT_CACHE_PATH", nullptr);
  EXPECT_EQ(flag::XLA_PERSISTENT_CACHE_PATH(), std::nullopt);
  for (const char* value : {"", "a folder"}) {
    setenv("XLA_PERSISTENT_CACHE_PATH", value, 1);
    EXPECT_EQ(flag::XLA_PERSISTENT_CACHE_PATH(), value);
  }
}

TEST(Flags, BoolWords) {
  for (const char* value : {"1", "2", "true", "TRUE", "Yes", "on"}) {
    ScopedEnvironment set("XLA_SYNC_WAIT", value);
    EXPECT_TRUE(flag::XLA_SYNC_WAIT()) << value;
  }
  for (const char* value : {"0", "false", "No", "OFF"}) {
    ScopedEnvironment set("XLA_SYNC_WAIT", value);
    EXPECT_FALSE(flag::XLA_SYNC_WAIT()) << value;
  }
}

TEST(Flags, TextOfTheWrongTypeIsAnErrorThatNamesTheVariable) {
  {
    ScopedEnvironment set("XLA_SYNC_WAIT", "maybe");
    EXPECT_EQ(error_of([] { flag::XLA_SYNC_WAIT(); }),
              "Value|XLA_SYNC_WAIT: expected 0 or 1 in the environment, got 'maybe'. "
              "Set it to 0 or 1 or unset it.");
  }
  for (const char* value : {"four", "4x", "4.5", "99999999999999999999"}) {
    ScopedEnvironment set("CPU_NUM_DEVICES", value);
    EXPECT_EQ(error_of([] { flag::CPU_NUM_DEVICES(); }),
              "Value|CPU_NUM_DEVICES: expected an integer in the environment, got '" +
                  std::string(value) + "'. Set it to a number or unset it.");
  }
}

TEST(Flags, NegativeIntegers) {
  ScopedEnvironment set("XLA_COMPILATION_CACHE_SIZE", "-1");
  EXPECT_EQ(flag::XLA_COMPILATION_CACHE_SIZE(), -1);
}

TEST(Flags, TableIsSound) {
  std::set<std::string> names;
  for (const FlagInfo& info : flags::kTable) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name << " is declared twice";
    EXPECT_FALSE(std::string(info.help).empty()) << info.name;
    // A default that does not parse would throw in the first program that leaves the flag alone.
    ScopedEnvironment unset(info.name, nullptr);
    switch (info.type) {
      case FlagType::Bool:
        EXPECT_NO_THROW(flags::read_Bool(info)) << info.name;
        break;
      case FlagType::Int:
        EXPECT_NO_THROW(flags::read_Int(info)) << info.name;
        break;
      case FlagType::String:
        EXPECT_EQ(flags::read_String(info), info.default_text);
        break;
      case FlagType::OptionalString:
        EXPECT_EQ(flags::read_OptionalString(info), std::nullopt);
        EXPECT_STREQ(info.default_text, "");
        break;
    }
  }
}

TEST(Flags, CacheKeyHasTheFlagsThatProgramsDependOnAndNoOther) {
  ScopedEnvironment keyed("XLA_FLAGS", "--xla_cpu_enable_fast_math=true");
  ScopedEnvironment not_keyed("XLA_SYNC_WAIT", "1");
  const std::string key = flags::cache_key_text();
  EXPECT_NE(key.find("XLA_FLAGS=--xla_cpu_enable_fast_math=true\n"), std::string::npos) << key;
  EXPECT_EQ(key.find("XLA_SYNC_WAIT"), std::string::npos) << key;
  setenv("XLA_FLAGS", "", 1);
  EXPECT_NE(flags::cache_key_text(), key);
}

}  // namespace
}  // namespace torch_xla::util
