#include "cpu/call_text.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>

#include "util/error.h"

namespace torch_xla::cpu {
namespace {

using Constant = CallText::Constant;
using ArgumentText = CallText::ArgumentText;
using Result = CallText::Result;
using Kind = CallText::Kind;

// --- writer --------------------------------------------------------------------------------

std::string hexadecimal(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%a", value);
  return text;
}

struct ConstantWriter {
  std::string operator()(std::monostate) const { return "-"; }
  std::string operator()(int64_t v) const { return "i" + std::to_string(v); }
  std::string operator()(double v) const { return "d" + hexadecimal(v); }
  std::string operator()(bool v) const { return v ? "b1" : "b0"; }
  std::string operator()(std::complex<double> v) const {
    return "c" + hexadecimal(v.real()) + "," + hexadecimal(v.imag());
  }
  std::string operator()(const std::string& v) const {
    return "q" + std::to_string(v.size()) + ":" + v;
  }
  std::string operator()(const std::vector<Constant>& list) const {
    std::string text = "[";
    for (size_t i = 0; i < list.size(); ++i) {
      text += (i == 0 ? "" : " ") + std::visit(*this, list[i].value);
    }
    return text + "]";
  }
};

std::string str(const ArgumentText::Element& e) {
  if (e.operand < 0) return "-";
  if (e.dim >= 0) return "p" + std::to_string(e.operand) + "/" + std::to_string(e.dim);
  if (e.row >= 0) return "r" + std::to_string(e.operand) + "/" + std::to_string(e.row);
  if (e.result < 0) return "t" + std::to_string(e.operand);
  return "u" + std::to_string(e.operand) + ":" + std::to_string(e.result);
}

std::string str(const ArgumentText& a) {
  switch (a.kind) {
    case Kind::Constant:
      return std::visit(ConstantWriter(), a.constant.value);
    case Kind::List: {
      std::string text = "(";
      for (size_t i = 0; i < a.list.size(); ++i) text += (i == 0 ? "" : " ") + str(a.list[i]);
      return text + ")";
    }
    case Kind::SharedOut: {
      std::string text = "{";
      for (const ArgumentText::Element& e : a.list) text += str(e) + " ";
      return text + "}";
    }
    default: {
      const std::string text = static_cast<char>(a.kind) + std::to_string(a.operand);
      return a.is_part() ? text + "/" + std::to_string(a.dim) : text;
    }
  }
}

std::string str(const Result& r) {
  if (!r.wanted) return "-";
  if (r.cut == Partition::kWhole && !r.transposed) return "*";
  return r.cut == Partition::kSum ? "+" : (r.transposed ? "x" : "/") + std::to_string(r.cut);
}

// --- reader --------------------------------------------------------------------------------

int64_t integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  TXLA_CHECK(error == std::errc() && end == text.data() + text.size(),
             "host kernel: expected an integer, got '", text, "'.");
  return value;
}

// The position of an operand or result.
int64_t position(std::string_view text) {
  const int64_t value = integer(text);
  TXLA_CHECK(value >= 0, "host kernel: expected a position, got '", text, "'.");
  return value;
}

double floating(std::string_view text) { return std::strtod(std::string(text).c_str(), nullptr); }

class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  bool empty() {
    skip_spaces();
    return rest_.empty();
  }

  // Up to a space or the end of a list.
  std::string_view word() {
    TXLA_CHECK(!empty(), "host kernel: the text of a call ends early.");
    const size_t end = std::min(rest_.find_first_of(" )]}"), rest_.size());
    const std::string_view word = rest_.substr(0, end);
    TXLA_CHECK(!word.empty(), "host kernel: cannot read '", rest_, "'.");
    rest_.remove_prefix(end);
    return word;
  }

  ArgumentText argument() {
    if (accept('(')) return {.kind = Kind::List, .list = elements(')')};
    if (accept('{')) return {.kind = Kind::SharedOut, .list = elements('}')};
    TXLA_CHECK(!empty(), "host kernel: the text of a call ends early.");
    if (std::string_view("twmpxsfg").find(rest_.front()) == std::string_view::npos) {
      return {.constant = constant()};
    }
    const std::string_view w = word();
    ArgumentText a{.kind = static_cast<Kind>(w.front())};
    const size_t end = a.is_part() ? w.find('/') : w.size();
    TXLA_CHECK(end != std::string_view::npos, "host kernel: expected a dimension in '", w, "'.");
    a.operand = static_cast<size_t>(position(w.substr(1, end - 1)));
    if (a.is_part()) a.dim = integer(w.substr(end + 1));
    return a;
  }

  Result result() {
    const std::string_view w = word();
    if (w == "-") return {.wanted = false};
    if (w == "*") return {};
    if (w == "+") return {.cut = Partition::kSum};
    const bool transposed = w.front() == 'x';
    TXLA_CHECK(transposed || w.front() == '/', "host kernel: cannot read the result '", w, "'.");
    return {.cut = integer(w.substr(1)), .transposed = transposed};
  }

 private:
  void skip_spaces() {
    while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
  }

  bool accept(char c) {
    if (empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }

  std::vector<ArgumentText::Element> elements(char end) {
    std::vector<ArgumentText::Element> list;
    while (!accept(end)) {
      const std::string_view w = word();
      const size_t middle = w.find_first_of(":/");
      const bool has_middle = middle != std::string_view::npos;
      const auto first = [&] { return position(w.substr(1, middle - 1)); };
      if (w == "-") {
        list.push_back({});
      } else if (w.front() == 't' && !has_middle) {
        list.push_back({.operand = position(w.substr(1))});
      } else if (w.front() == 'p' && end == ')' && has_middle && w[middle] == '/') {
        list.push_back({.operand = first(), .dim = position(w.substr(middle + 1))});
      } else if (w.front() == 'r' && end == '}' && has_middle && w[middle] == '/') {
        list.push_back({.operand = first(), .row = position(w.substr(middle + 1))});
      } else if (w.front() == 'u' && has_middle && w[middle] == ':') {
        list.push_back({.operand = first(), .result = position(w.substr(middle + 1))});
      } else {
        util::fail(util::ErrorKind::Runtime, "host kernel: cannot read '", w,
                   "' in a list of tensors.");
      }
    }
    return list;
  }

  Constant constant() {
    if (accept('[')) {
      std::vector<Constant> list;
      while (!accept(']')) list.push_back(constant());
      return {std::move(list)};
    }
    if (accept('q')) return {string()};
    const std::string_view w = word();
    if (w == "-") return {};
    const std::string_view value = w.substr(1);
    switch (w.front()) {
      case 'i':
        return {integer(value)};
      case 'd':
        return {floating(value)};
      case 'b':
        return {value == "1"};
      case 'c': {
        const size_t comma = value.find(',');
        TXLA_CHECK(comma != std::string_view::npos, "host kernel: expected two numbers in '", w,
                   "'.");
        return {std::complex<double>(floating(value.substr(0, comma)),
                                     floating(value.substr(comma + 1)))};
      }
      default:
        util::fail(util::ErrorKind::Runtime, "host kernel: cannot read '", w, "'.");
    }
  }

  // After the 'q': may hold anything, spaces and brackets as well.
  std::string string() {
    const size_t colon = rest_.find(':');
    TXLA_CHECK(colon != std::string_view::npos, "host kernel: expected a string's length.");
    const auto length = static_cast<size_t>(integer(rest_.substr(0, colon)));
    rest_.remove_prefix(colon + 1);
    TXLA_CHECK(length <= rest_.size(), "host kernel: the text of a call ends early.");
    std::string text(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return text;
  }

  std::string_view rest_;
};

}  // namespace

bool CallText::ArgumentText::is_part() const {
  return kind == Kind::Part || kind == Kind::TransposedPart;
}

std::string CallText::str() const {
  std::string text = op;
  for (const ArgumentText& a : arguments) text += " " + cpu::str(a);
  text += " =";
  for (const Result& r : results) text += " " + cpu::str(r);
  return text;
}

CallText CallText::parse(std::string_view text) {
  const size_t end = text.rfind(" =");
  TXLA_CHECK(end != std::string_view::npos, "host kernel: expected results after '=', got '", text,
             "'.");
  Reader call(text.substr(0, end));
  CallText parsed{std::string(call.word())};
  while (!call.empty()) parsed.arguments.push_back(call.argument());
  for (Reader results(text.substr(end + 2)); !results.empty();) {
    parsed.results.push_back(results.result());
  }
  return parsed;
}

}  // namespace torch_xla::cpu
