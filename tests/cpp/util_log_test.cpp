#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "util/log.h"

namespace torch_xla::util::log {
namespace {

class Log : public ::testing::Test {
 protected:
  void SetUp() override { set(nullptr, nullptr, nullptr); }
  void TearDown() override { set(nullptr, nullptr, nullptr); }

  static void set(const char* level, const char* vmodule, const char* thread_id = nullptr) {
    put("TF_CPP_MIN_LOG_LEVEL", level);
    put("TF_CPP_VMODULE", vmodule);
    put("TF_CPP_LOG_THREAD_ID", thread_id);
    refresh();
  }

  static std::string captured(auto body) {
    ::testing::internal::CaptureStderr();
    body();
    return ::testing::internal::GetCapturedStderr();
  }

  // The letters of the lines that come out: of these same statements, whatever the settings.
  static std::string letters() {
    const std::string text = captured([] {
      TXLA_VLOG(3) << "three";
      TXLA_VLOG(1) << "one";
      TXLA_LOG(INFO) << "info";
      TXLA_LOG(WARNING) << "warning";
      TXLA_LOG(ERROR) << "error";
    });
    std::string result;
    for (std::size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1) {
      result += text[begin];
    }
    return result;
  }

 private:
  static void put(const char* name, const char* value) {
    if (value != nullptr) {
      setenv(name, value, 1);
    } else {
      unsetenv(name);
    }
  }
};

TEST_F(Log, IsSilentBelowWarningByDefault) { EXPECT_EQ(letters(), "WE"); }

TEST_F(Log, MinLevelSelects) {
  set("0", nullptr);
  EXPECT_EQ(letters(), "IWE");
  set("2", nullptr);
  EXPECT_EQ(letters(), "E");
  set("3", nullptr);
  EXPECT_EQ(letters(), "");
}

TEST_F(Log, VmoduleTurnsOnItsModuleUpToItsLevel) {
  set("0", "util_log_test=1");
  EXPECT_EQ(letters(), "VIWE");
  set("0", "other=9,util_log_test=3");
  EXPECT_EQ(letters(), "VVIWE");
  set("0", "util_log=3,log_test=3,other=9");
  EXPECT_EQ(letters(), "IWE");
}

TEST_F(Log, VmoduleNeedsMinLevelZero) {
  set("1", "util_log_test=9");
  EXPECT_EQ(letters(), "WE");
}

TEST_F(Log, ModulesAreFilesFoldersAndTheNamesUsersKnow) {
  Site site("/somewhere/csrc/executor/step/sync.cpp", 1);
  for (const char* name : {"sync=2", "executor=2", "executor/step=2", "xla_graph_executor=2"}) {
    set("0", name);
    EXPECT_TRUE(site.verbose_on(2)) << name;
    EXPECT_FALSE(site.verbose_on(3)) << name;
  }
  set("0", "pjrt_computation_client=2,somewhere=2,csrc=2,exec=2");
  EXPECT_FALSE(site.verbose_on(2));
}

TEST_F(Log, OperandsOfAStatementThatIsOffAreNotEvaluated) {
  int evaluated = 0;
  TXLA_LOG(INFO) << ++evaluated;
  TXLA_VLOG(1) << ++evaluated;
  EXPECT_EQ(evaluated, 0);
}

TEST_F(Log, LineSaysWhereAndWhat) {
  const std::string text = captured([] { TXLA_LOG(WARNING) << "value " << 42; });
  // W0403 12:00:00.123456 util_log_test.cpp:LINE] value 42
  EXPECT_EQ(text.find(" util_log_test.cpp:"), 21u) << text;
  EXPECT_NE(text.find("] value 42\n"), std::string::npos) << text;
}

TEST_F(Log, ThreadId) {
  set(nullptr, nullptr, "1");
  const std::string text = captured([] { TXLA_LOG(WARNING) << "x"; });
  EXPECT_EQ(text.find(" " + std::to_string(gettid()) + " util_log_test.cpp:"), 21u) << text;
}

TEST_F(Log, BadSettingsAreReportedAndLeftOut) {
  const std::string text = captured([] { set("loud", "broken,util_log_test=1"); });
  EXPECT_NE(text.find("TF_CPP_MIN_LOG_LEVEL: expected an integer in the environment, got 'loud'"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("TF_CPP_VMODULE: expected module=level,..., got 'broken'"), std::string::npos)
      << text;
  EXPECT_EQ(letters(), "WE");
  EXPECT_EQ(captured([] { refresh(); }), "") << "reported once, not at each refresh";
}

TEST_F(Log, LinesOfSeveralThreadsStayWhole) {
  const std::string text = captured([] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([] {
        for (int i = 0; i < 50; ++i) {
          TXLA_LOG(WARNING) << "begin " << i << " end";
          refresh();
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  });
  int lines = 0;
  for (std::size_t begin = 0; begin < text.size(); ++lines) {
    const std::size_t end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);
    EXPECT_EQ(line[0], 'W') << line;
    EXPECT_TRUE(line.ends_with(" end")) << line;
    EXPECT_EQ(line.find("begin"), line.rfind("begin")) << line;
    begin = end + 1;
  }
  EXPECT_EQ(lines, 200);
}

}  // namespace
}  // namespace torch_xla::util::log
