#include "hlo/generic.h"

#include <algorithm>
#include <string>

#include "util/error.h"

namespace torch_xla::hlo {
namespace {

std::string_view trimmed(std::string_view text) {
  const size_t from = text.find_first_not_of(' ');
  if (from == text.npos) return {};
  return text.substr(from, text.find_last_not_of(' ') + 1 - from);
}

size_t end_of_string(std::string_view text, size_t from) {
  for (size_t at = text.find_first_of("\"\\", from + 1); at != text.npos;
       at = text.find_first_of("\"\\", at + 1)) {
    if (text[at] == '"') return at + 1;
    ++at;
  }
  return text.size();
}

// The next of these characters that stands in no bracket or string, or the end.
size_t find_outside(std::string_view text, std::string_view stops, size_t from = 0) {
  int depth = 0;
  for (size_t at = from; at < text.size();) {
    const char c = text[at];
    if (depth == 0 && stops.find(c) != stops.npos) return at;
    if (c == '"') {
      at = end_of_string(text, at);
      continue;
    }
    if (c == '-' && at + 1 < text.size() && text[at + 1] == '>') {
      at += 2;
      continue;
    }
    if (c == '(' || c == '[' || c == '{' || c == '<') ++depth;
    if (c == ')' || c == ']' || c == '}' || c == '>') --depth;
    ++at;
  }
  return text.size();
}

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  FunctionText function() {
    FunctionText f;
    skip_space();
    expect("func.func ");
    f.is_private = skip("private ");
    skip("public ");
    f.symbol = until("(");
    for (const std::string_view argument : members_of(bracket())) {
      const size_t colon = argument.find(": ");
      std::string_view type = argument.substr(colon + 2);
      const size_t brace = type.find(" {");
      f.argument_attributes.push_back(brace == type.npos ? "" : type.substr(brace + 1));
      f.body.arguments.push_back({argument.substr(0, colon), type.substr(0, brace)});
    }
    expect(" -> ");
    for (const std::string_view result : members_of(bracket())) {
      const size_t brace = result.find(" {");
      f.results.push_back({result.substr(0, brace),
                           brace == result.npos ? std::string_view() : result.substr(brace + 1)});
    }
    expect(" {\n");
    operations(f.body);
    expect("}\n");
    return f;
  }

  std::string_view rest() const { return text_.substr(at_); }

 private:
  bool skip(std::string_view token) {
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }
  void expect(std::string_view token) {
    if (!skip(token)) {
      TXLA_CHECK(false, "stablehlo: expected ", token, " in the generic form of a program, got ",
                 text_.substr(at_, 60), ".");
    }
  }
  void skip_space() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  std::string_view until(std::string_view token) {
    const size_t end = std::min(text_.find(token, at_), text_.size());
    const std::string_view found = text_.substr(at_, end - at_);
    at_ = end;
    return found;
  }
  // The text in the bracket that opens here.
  std::string_view bracket() {
    const size_t end = end_of_bracket(text_, at_);
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 2);
    at_ = end;
    return inside;
  }

  // Those of a region, up to its brace.
  void operations(Block& block) {
    for (skip_space(); at_ < text_.size() && text_[at_] != '}'; skip_space()) {
      block.operations.push_back(operation());
    }
  }

  Operation operation() {
    Operation o;
    if (text_[at_] == '%') {
      o.results = members_of(until(" = "));
      expect(" = ");
    }
    expect("\"");
    o.name = until("\"");
    expect("\"");
    o.operands = members_of(bracket());
    if (skip(" ({")) {
      --at_;
      do {
        o.regions.push_back(region());
      } while (skip(", "));
      expect(")");
    }
    if (skip(" {")) {
      --at_;
      o.attributes = entries_of(bracket());
    }
    expect(" : ");
    o.operand_types = members_of(bracket());
    expect(" -> ");
    const size_t line = std::min(text_.find('\n', at_), text_.size());
    if (text_[at_] == '(') {
      o.result_types = members_of(bracket());
    } else {
      const std::string_view type = text_.substr(at_, line - at_);
      o.result_types = {type.substr(0, type.find(" loc("))};
      at_ += o.result_types[0].size();
    }
    skip_space();
    o.location = text_.substr(at_, line - at_);
    at_ = line;
    expect("\n");
    return o;
  }

  Block region() {
    Block block;
    expect("{\n");
    skip_space();
    if (skip("^bb0")) {
      for (const std::string_view argument : members_of(bracket())) {
        const size_t colon = argument.find(": ");
        block.arguments.push_back({argument.substr(0, colon), argument.substr(colon + 2)});
      }
      expect(":\n");
    }
    operations(block);
    expect("}");
    return block;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

std::string_view Operation::attribute(std::string_view of) const {
  for (const NamedText& a : attributes) {
    if (a.name == of) return a.text;
  }
  return {};
}

FunctionText read_function(std::string_view& text) {
  Reader reader(text);
  FunctionText function = reader.function();
  text = reader.rest();
  return function;
}

size_t end_of_bracket(std::string_view text, size_t from) {
  if (text[from] == '"') return end_of_string(text, from);
  return std::min(find_outside(text, ")]}>", from + 1) + 1, text.size());
}

std::vector<std::string_view> members_of(std::string_view list) {
  std::vector<std::string_view> members;
  for (size_t at = 0; at < list.size();) {
    const size_t end = find_outside(list, ",", at);
    const std::string_view member = trimmed(list.substr(at, end - at));
    if (!member.empty()) members.push_back(member);
    at = end + 1;
  }
  return members;
}

std::vector<NamedText> entries_of(std::string_view dictionary) {
  std::vector<NamedText> entries;
  for (const std::string_view member : members_of(dictionary)) {
    const size_t equals = find_outside(member, "=");
    entries.push_back(
        {trimmed(member.substr(0, equals)),
         equals == member.size() ? std::string_view() : trimmed(member.substr(equals + 1))});
  }
  return entries;
}

}  // namespace torch_xla::hlo
