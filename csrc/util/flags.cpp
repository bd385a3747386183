#include "util/flags.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>

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

}  // namespace

std::string text(const FlagInfo& info) {
  const char* value = std::getenv(info.name);
  return value != nullptr && *value != '\0' ? value : info.default_text;
}

std::string read_String(const FlagInfo& info) { return text(info); }

std::optional<std::string> read_OptionalString(const FlagInfo& info) {
  const char* value = std::getenv(info.name);
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

std::int64_t read_Int(const FlagInfo& info) {
  const std::string value = text(info);
  const std::optional<std::int64_t> number = parse_integer(value);
  TXLA_CHECK_KIND(ErrorKind::Value, number, info.name,
                  ": expected an integer in the environment, got '", value,
                  "'. Set it to a number or unset it.");
  return *number;
}

bool read_Bool(const FlagInfo& info) {
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
