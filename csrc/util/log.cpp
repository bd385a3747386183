#include "util/log.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/time.h>
#include <unistd.h>

#include "util/error.h"
#include "util/flags.h"

namespace torch_xla::util::log {

std::atomic<std::uint32_t> generation{1};

namespace {

// Module names that users of torch_xla know, and the folder that does that work here.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kKnownModules = {{
    {"xla_graph_executor", "executor"},
    {"pjrt_computation_client", "pjrt"},
    {"tensor", "lazy"},
    {"xla_fallback", "dispatch"},
}};

struct Settings {
  // The environment's text, to see whether it has changed.
  std::string level_text, vmodule_text, thread_id_text;
  int min_severity = static_cast<int>(Severity::WARNING);
  bool thread_id = false;
  std::vector<std::pair<std::string, int>> verbose;  // module, level
};

const FlagInfo& info(flags::Id id) { return flags::kTable[static_cast<std::size_t>(id)]; }

// A bad value must not stop a program that only wanted to log: it is reported and left out.
void report_bad_setting(const std::string& what) {
  std::fprintf(stderr, "torch_xla: %s\n", what.c_str());
}

std::vector<std::pair<std::string, int>> parse_vmodule(const std::string& text) {
  std::vector<std::pair<std::string, int>> result;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string entry = text.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t equals = entry.find('=');
    int level = 0;
    bool good = equals != std::string::npos && equals > 0;
    if (good) {
      const char* stop = entry.data() + entry.size();
      const auto parsed = std::from_chars(entry.data() + equals + 1, stop, level);
      good = parsed.ec == std::errc() && parsed.ptr == stop;
    }
    if (good) {
      result.emplace_back(entry.substr(0, equals), level);
    } else {
      report_bad_setting("TF_CPP_VMODULE: expected module=level,..., got '" + entry +
                         "'. This entry is left out.");
    }
  }
  return result;
}

Settings read_settings() {
  Settings settings;
  settings.level_text = flags::text(info(flags::Id::TF_CPP_MIN_LOG_LEVEL));
  settings.vmodule_text = flags::text(info(flags::Id::TF_CPP_VMODULE));
  settings.thread_id_text = flags::text(info(flags::Id::TF_CPP_LOG_THREAD_ID));
  try {
    settings.min_severity =
        static_cast<int>(std::clamp<std::int64_t>(flag::TF_CPP_MIN_LOG_LEVEL(), 0, 100));
  } catch (const Error& error) {
    report_bad_setting(error.what());
  }
  try {
    settings.thread_id = flag::TF_CPP_LOG_THREAD_ID();
  } catch (const Error& error) {
    report_bad_setting(error.what());
  }
  settings.verbose = parse_vmodule(settings.vmodule_text);
  return settings;
}

struct State {
  std::mutex mutex;
  Settings settings = read_settings();
};

// Never destroyed: threads may log while the process exits.
State& state() {
  static State* const instance = new State();
  return *instance;
}

// The path below csrc/, or the last component of a path that is not there.
std::string_view short_path(std::string_view file) {
  constexpr std::string_view kRoot = "csrc/";
  const std::size_t root = file.rfind(kRoot);
  if (root != std::string_view::npos) {
    return file.substr(root + kRoot.size());
  }
  const std::size_t slash = file.rfind('/');
  return slash == std::string_view::npos ? file : file.substr(slash + 1);
}

bool names_module(std::string_view name, std::string_view path) {
  const std::size_t slash = path.rfind('/');
  std::string_view base = slash == std::string_view::npos ? path : path.substr(slash + 1);
  base = base.substr(0, base.find('.'));
  const auto is_in = [&](std::string_view folder) {
    return path.starts_with(folder) && path.substr(folder.size()).starts_with('/');
  };
  if (name == base || is_in(name)) {
    return true;
  }
  return std::any_of(kKnownModules.begin(), kKnownModules.end(),
                     [&](const auto& known) { return known.first == name && is_in(known.second); });
}

}  // namespace

void refresh() {
  State& current = state();
  std::lock_guard lock(current.mutex);
  const Settings& known = current.settings;
  if (known.level_text == flags::text(info(flags::Id::TF_CPP_MIN_LOG_LEVEL)) &&
      known.vmodule_text == flags::text(info(flags::Id::TF_CPP_VMODULE)) &&
      known.thread_id_text == flags::text(info(flags::Id::TF_CPP_LOG_THREAD_ID))) {
    return;
  }
  current.settings = read_settings();
  generation.fetch_add(1, std::memory_order_relaxed);
}

Site::Limit Site::compute(std::uint32_t now) const {
  State& current = state();
  std::lock_guard lock(current.mutex);
  const Settings& settings = current.settings;
  Limit limit{static_cast<std::int16_t>(settings.min_severity), -1, now};
  if (settings.min_severity > static_cast<int>(Severity::INFO)) {
    return limit;
  }
  int verbose = 0;
  for (const auto& [name, level] : settings.verbose) {
    if (names_module(name, short_path(file_))) {
      verbose = std::max(verbose, level);
    }
  }
  limit.verbose = static_cast<std::int16_t>(std::min(verbose, 1000));
  return limit;
}

// "W0403 12:00:00.123456 executor/step/sync.cpp:42] ", with the thread's id before the file if
// asked.
Line::Line(const Site& site, char letter) {
  timeval now{};
  gettimeofday(&now, nullptr);
  std::tm local{};
  localtime_r(&now.tv_sec, &local);
  char date[64];
  std::snprintf(date, sizeof(date), "%c%02d%02d %02d:%02d:%02d.%06d ", letter, local.tm_mon + 1,
                local.tm_mday, local.tm_hour, local.tm_min, local.tm_sec,
                static_cast<int>(now.tv_usec));
  stream_ << date;
  bool thread_id = false;
  {
    State& current = state();
    std::lock_guard lock(current.mutex);
    thread_id = current.settings.thread_id;
  }
  if (thread_id) {
    stream_ << gettid() << ' ';
  }
  stream_ << short_path(site.file()) << ':' << site.line() << "] ";
}

// One write for the whole line, so that lines of several threads do not mix.
Line::~Line() {
  stream_ << '\n';
  const std::string text = stream_.str();
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace torch_xla::util::log
