// Leveled logging to stderr, ruled by TF_CPP_MIN_LOG_LEVEL, TF_CPP_VMODULE, TF_CPP_LOG_THREAD_ID.
// A statement that is off costs two loads; its operands are not evaluated.
#pragma once

#include <atomic>
#include <cstdint>
#include <sstream>

namespace torch_xla::util::log {

enum class Severity : int { INFO = 0, WARNING = 1, ERROR = 2 };

// Reads the environment again; each sync calls it. The first log statement reads it, too.
void refresh();

// The place of a log statement. It remembers whether the statement is on.
class Site {
 public:
  constexpr Site(const char* file, int line) : file_(file), line_(line) {}

  // Verbose statements are on up to the level that TF_CPP_VMODULE gives to their module: the
  // file's name without extension, or its folder under csrc/.
  bool verbose_on(int level) { return level <= limit().verbose; }
  bool severity_on(Severity severity) { return static_cast<int>(severity) >= limit().severity; }

  const char* file() const { return file_; }
  int line() const { return line_; }

 private:
  struct Limit {
    std::int16_t severity;
    std::int16_t verbose;
    std::uint32_t generation;
  };
  static_assert(std::atomic<Limit>::is_always_lock_free);

  Limit limit();
  Limit compute(std::uint32_t generation) const;

  const char* file_;
  int line_;
  std::atomic<Limit> limit_{Limit{0, 0, 0}};
};

// Collects one line and writes it whole when it is destroyed.
class Line {
 public:
  Line(const Site& site, char letter);
  ~Line();
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

// Counts the changes of the settings from 1, so that a fresh Site (generation 0) computes its
// limit.
extern std::atomic<std::uint32_t> generation;

inline Site::Limit Site::limit() {
  Limit known = limit_.load(std::memory_order_relaxed);
  const std::uint32_t now = generation.load(std::memory_order_relaxed);
  if (known.generation != now) [[unlikely]] {
    known = compute(now);
    limit_.store(known, std::memory_order_relaxed);
  }
  return known;
}

}  // namespace torch_xla::util::log

// TXLA_LOG(WARNING) << "text" << value;   TXLA_VLOG(3) << "text";
#define TXLA_LOG(severity) \
  TXLA_LOG_IF_(severity_on(::torch_xla::util::log::Severity::severity), #severity[0])
#define TXLA_VLOG(level) TXLA_LOG_IF_(verbose_on(level), 'V')

// The lambda gives each statement its own static Site; a constexpr constructor needs no guard.
#define TXLA_LOG_IF_(condition, letter)                                                 \
  if (::torch_xla::util::log::Site& txla_site = []() -> ::torch_xla::util::log::Site& { \
        static constinit ::torch_xla::util::log::Site site(__FILE__, __LINE__);         \
        return site;                                                                    \
      }();                                                                              \
      !txla_site.condition) {                                                           \
  } else                                                                                \
    ::torch_xla::util::log::Line(txla_site, letter).stream()
