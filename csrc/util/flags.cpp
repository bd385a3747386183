#include "util/flags.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <vector>

#include <unistd.h>

#include "util/error.h"

namespace torch_xla::util::flags {

namespace {

std::optional<std::int64_t> parse_integer(const std::string& text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) {
    return std::nullopt;
  }
  return value;
}

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// The part of the environment that this thread has read. Most runs of a program ask for a dozen
// flags; that nothing has changed is seen sooner than one of them is found. setenv() never writes
// into a string that is in place.
class Known {
 public:
  struct Flag {
    std::optional<std::string> given;
    std::optional<bool> as_bool;
    std::optional<std::int64_t> as_int;
  };

  static Flag& of(const FlagInfo& info) {
    thread_local Known known;
    known.refresh();
    std::optional<Flag>& flag = known.flags_[static_cast<std::size_t>(&info - kTable)];
    if (!flag) {
      const char* value = std::getenv(info.name);
      flag.emplace();
      if (value != nullptr) flag->given = value;
    }
    return *flag;
  }

 private:
  void refresh() {
    // An array of the same address has room for as many entries as it had.
    const std::size_t bytes = seen_.size() * sizeof(char*);
    if (environ == array_ && std::memcmp(environ, seen_.data(), bytes) == 0) return;
    array_ = environ;
    for (std::optional<Flag>& flag : flags_) flag.reset();
    seen_.clear();
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
      seen_.push_back(*entry);
    }
    seen_.push_back(nullptr);
  }

  char** array_ = nullptr;         // `environ`
  std::vector<const char*> seen_;  // its entries, with the null at the end
  std::array<std::optional<Flag>, std::size(kTable)> flags_;
};

}  // namespace

std::string text(const FlagInfo& info) {
  const std::optional<std::string>& given = Known::of(info).given;
  return given && !given->empty() ? *given : info.default_text;
}

std::string read_String(const FlagInfo& info) { return text(info); }

std::optional<std::string> read_OptionalString(const FlagInfo& info) {
  return Known::of(info).given;
}

std::int64_t read_Int(const FlagInfo& info) {
  std::optional<std::int64_t>& known = Known::of(info).as_int;
  if (known) return *known;
  const std::string value = text(info);
  const std::optional<std::int64_t> number = parse_integer(value);
  TXLA_CHECK_KIND(ErrorKind::Value, number, info.name,
                  ": expected an integer in the environment, got '", value,
                  "'. Set it to a number or unset it.");
  return *(known = number);
}

namespace {

bool parse_bool(const FlagInfo& info) {
  const std::string value = text(info);
  if (const std::optional<std::int64_t> number = parse_integer(value)) {
    return *number != 0;
  }
  const std::string word = lower_case(value);
  if (word == "true" || word == "yes" || word == "on") {
    return true;
  }
  if (word == "false" || word == "no" || word == "off") {
    return false;
  }
  fail(ErrorKind::Value, info.name, ": expected 0 or 1 in the environment, got '", value,
       "'. Set it to 0 or 1 or unset it.");
}

}  // namespace

bool read_Bool(const FlagInfo& info) {
  std::optional<bool>& known = Known::of(info).as_bool;
  if (!known) known = parse_bool(info);
  return *known;
}

std::string cache_key_text() {
  std::string result;
  for (const FlagInfo& info : kTable) {
    if (info.in_cache_key) {
      result.append(info.name).append("=").append(text(info)).append("\n");
    }
  }
  return result;
}

}  // namespace torch_xla::util::flags
