#include "executor/compile/difference.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <unordered_map>
#include <utility>

#include <ATen/core/jit_type.h>

#include "lazy/operator.h"
#include "lazy/print.h"
#include "util/error.h"

namespace torch_xla::executor {

using lazy::Argument;
using lazy::Function;
using lazy::Ref;
using lazy::Signature;
using util::concat;

namespace {

using Kind = Difference::Kind;
using Call = lazy::Function::Call;

bool same_place(const lazy::Source& a, const lazy::Source& b) {
  if (a.code == b.code) return a.instruction == b.instruction;
  return a.str() == b.str();  // code that was compiled again, or whole stacks
}

bool same_call(const Call& a, const Call& b) { return a.signature->key == b.signature->key; }

// The user's line has called the same operator.
bool corresponds(const Call& a, const Call& b) {
  return a.signature->op == b.signature->op && same_place(a.source, b.source);
}

std::string type_of(const lazy::Geometry* geometry) { return lazy::types_of({geometry}); }

Difference of_two(Kind kind, std::string what, const Call& call, const Call& earlier) {
  return {kind, std::move(what), call, earlier};
}

std::string argument_name(const Signature& signature, size_t position) {
  const auto& arguments = signature.op->schema().arguments();
  return position < arguments.size() ? arguments[position].name() : "argument";
}

// The argument that an operand belongs to.
std::string operand_name(const Signature& signature, size_t operand) {
  for (size_t i = 0; i < signature.arguments.size(); ++i) {
    const Argument& a = signature.arguments[i];
    const bool holds = a.kind == Argument::Kind::Tensor || a.kind == Argument::Kind::List;
    const size_t count = a.kind == Argument::Kind::Tensor ? 1 : a.count;
    if (!holds || operand < a.first || operand >= a.first + count) continue;
    const std::string name = concat("`", argument_name(signature, i), "`");
    return count == 1 ? name : concat("tensor ", operand - a.first, " of ", name);
  }
  return "an operand";
}

std::string value_of(const Signature& signature, size_t position) {
  const Argument& a = signature.arguments[position];
  switch (a.kind) {
    case Argument::Kind::None:
      return "None";
    case Argument::Kind::Tensor:
      return "a tensor";
    case Argument::Kind::List:
      return concat(a.count, a.count == 1 ? " tensor" : " tensors");
    case Argument::Kind::Number:
      return "a number";
    case Argument::Kind::Static:
      break;
  }
  if (a.value.isNone()) return "None";
  const auto& arguments = signature.op->schema().arguments();
  if (a.value.isInt() && position < arguments.size()) {
    auto type = arguments[position].real_type();
    if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    if (type->kind() == c10::TypeKind::ScalarTypeType) {
      return c10::toString(static_cast<at::ScalarType>(a.value.toInt()));
    }
  }
  if (a.value.isBool()) return a.value.toBool() ? "True" : "False";
  std::ostringstream text;
  text << a.value;
  return text.str();
}

bool same_argument(const Signature& a, const Signature& b, size_t i) {
  const Argument &x = a.arguments[i], &y = b.arguments[i];
  if (x.kind != y.kind || x.count != y.count || x.present != y.present) return false;
  return x.kind != Argument::Kind::Static || value_of(a, i) == value_of(b, i);
}

// Sizes that are equal differ in strides.
std::string are(const lazy::Geometry& now, const lazy::Geometry& earlier) {
  const std::string a = type_of(&now), b = type_of(&earlier);
  if (a != b) return concat("is ", a, ", was ", b);
  return concat("has strides [", c10::Join(", ", now.strides), "], had [",
                c10::Join(", ", earlier.strides), "]");
}

Difference of_types(std::string whose, const lazy::Geometry* now, const lazy::Geometry* before,
                    const Call& call, const Call& earlier) {
  Difference d = of_two(now->dtype == before->dtype ? Kind::Shape : Kind::DType,
                        std::move(whose) + are(*now, *before), call, earlier);
  d.type = now;
  d.earlier_type = before;
  return d;
}

// Of two calls of one operator with different signatures.
Difference of_signatures(const Call& call, const Call& earlier) {
  const Signature &now = *call.signature, &before = *earlier.signature;
  const std::string of = concat(" of ", now.op->name, " ");
  for (size_t i = 0; i < std::min(now.operands.size(), before.operands.size()); ++i) {
    const lazy::Geometry *a = now.operands[i].geometry, *b = before.operands[i].geometry;
    if (a != b) return of_types(operand_name(now, i) + of, a, b, call, earlier);
  }
  for (size_t i = 0; i < std::min(now.arguments.size(), before.arguments.size()); ++i) {
    if (same_argument(now, before, i)) continue;
    Difference d = of_two(Kind::Attribute,
                          concat("`", argument_name(now, i), "`", of, "is ", value_of(now, i),
                                 ", was ", value_of(before, i)),
                          call, earlier);
    d.argument = argument_name(now, i);
    return d;
  }
  if (now.default_dtype != before.default_dtype) {
    return of_two(
        Kind::DType,
        concat("the default dtype at ", now.op->name, " is ", c10::toString(now.default_dtype),
               ", was ", c10::toString(before.default_dtype)),
        call, earlier);
  }
  for (size_t i = 0; i < std::min(now.outputs.size(), before.outputs.size()); ++i) {
    const lazy::Geometry *a = now.outputs[i], *b = before.outputs[i];
    if (a == b) continue;
    const std::string whose = concat("the result", of);
    if (a != nullptr && b != nullptr) return of_types(whose, a, b, call, earlier);
    const char* change = a == nullptr ? "is not wanted, was" : "is wanted, was not";
    return of_two(Kind::Calls, whose + change, call, earlier);
  }
  if (now.expansion != nullptr && before.expansion != nullptr) {
    if (auto inside = difference(*now.expansion, *before.expansion)) return *inside;
  }
  return of_two(Kind::Attribute, concat("an argument", of, "is another"), call, earlier);
}

std::optional<Call> call_at(const Function& function, size_t i) {
  return i < function.calls.size() ? std::optional(function.calls[i]) : std::nullopt;
}

// Of two functions whose calls `i` differ.
Difference of_calls(const Function& function, const Function& earlier, size_t i) {
  const std::optional<Call> now = call_at(function, i), before = call_at(earlier, i);
  if (now && before && corresponds(*now, *before)) return of_signatures(*now, *before);
  // Where the two go on alike: at their ends, or with calls that correspond.
  const auto meet = [&](size_t a, size_t b) {
    const std::optional<Call> x = call_at(function, a), y = call_at(earlier, b);
    return x && y ? corresponds(*x, *y) : !x && !y;
  };
  // The first of some calls whose place is known stands for them.
  const auto stretch = [i](const Function& of, size_t count, const char* how) {
    size_t first = i;
    while (first + 1 < i + count && of.calls[first].source.str().empty()) ++first;
    const Call& call = of.calls[of.calls[first].source.str().empty() ? i : first];
    const std::string others = count > 1 ? concat(" and ", count - 1, " more calls") : "";
    return std::pair(call, call.signature->op->name + others + how);
  };
  const auto came = [&](size_t count) {
    auto [call, what] = stretch(function, count, " came in");
    return Difference{Kind::Calls, std::move(what), std::move(call), std::nullopt};
  };
  const auto went = [&](size_t count) {
    auto [call, what] = stretch(earlier, count, " went away");
    return Difference{Kind::Calls, std::move(what), std::nullopt, std::move(call)};
  };
  constexpr size_t kFarthest = 4096;
  const size_t longest = std::max(function.calls.size(), earlier.calls.size());
  for (size_t count = 1; count <= std::min(kFarthest, longest - i); ++count) {
    if (now && meet(i + count, i)) return came(count);
    if (before && meet(i, i + count)) return went(count);
  }
  if (!now) return went(earlier.calls.size() - i);
  if (!before) return came(function.calls.size() - i);
  if (now->signature->op == before->signature->op) return of_signatures(*now, *before);
  return {Kind::Calls,
          concat(now->signature->op->name, " stands where ", before->signature->op->name, " was"),
          now, before};
}

// Where a value comes from.
std::string origin(const Function& function, const Ref& operand) {
  if (!operand) return "nothing";
  if (function.is_parameter(operand)) return "data";
  const Call& call = function.calls[function.call_of(operand)];
  return "the result of " + call.signature->op->name;
}

}  // namespace

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::Shape:
      return "shape";
    case Kind::DType:
      return "dtype";
    case Kind::Attribute:
      return "attribute";
    case Kind::Calls:
      return "calls";
    case Kind::Inputs:
      return "inputs";
    case Kind::Results:
      return "results";
  }
  return "";
}

std::string Difference::str() const {
  const std::string line = call ? call->source.str() : "";
  const std::string earlier_line = earlier_call ? earlier_call->source.str() : "";
  std::string text = what;
  if (!line.empty()) text += ", at " + line;
  if (!earlier_line.empty() && line != earlier_line) text += ", before at " + earlier_line;
  return text;
}

namespace {

// A result that one of two functions keeps: the first if it has `more`.
Difference of_result(const Function& function, const Function& earlier, const Ref& result,
                     bool more) {
  const Function& of = more ? function : earlier;
  Difference d{Kind::Results,
               concat(origin(of, result), more ? " is kept (" : " is not kept (",
                      function.results.size(), " results, before ", earlier.results.size(), ")")};
  if (result && !of.is_parameter(result)) {
    (more ? d.call : d.earlier_call) = of.calls[of.call_of(result)];
  }
  return d;
}

// Of two functions with equal calls.
std::optional<Difference> of_operands(const Function& function, const Function& earlier) {
  const auto same = [&](const Ref& a, const Ref& b) {
    if (!a || !b) return !a && !b;
    if (function.is_parameter(a) || earlier.is_parameter(b)) {
      return function.is_parameter(a) && earlier.is_parameter(b) && a.index == b.index;
    }
    return function.call_of(a) == earlier.call_of(b) && a.result == b.result;
  };
  for (size_t c = 0; c < function.calls.size(); ++c) {
    const Call &call = function.calls[c], &before = earlier.calls[c];
    for (uint32_t k = 0; k < call.num_operands; ++k) {
      const Ref &a = function.operands_of(call)[k], &b = earlier.operands_of(before)[k];
      if (same(a, b)) continue;
      const std::string of =
          concat(operand_name(*call.signature, k), " of ", call.signature->op->name, " is ");
      // Data are numbered in the order in which they are met.
      const bool are_data = function.is_parameter(a) && earlier.is_parameter(b);
      return of_two(Kind::Inputs,
                    are_data ? concat(of, a.index < b.index ? "data that another call reads too, "
                                                              "was data of its own"
                                                            : "data of its own, was data that "
                                                              "another call reads too")
                             : concat(of, origin(function, a), ", was ", origin(earlier, b)),
                    call, before);
    }
  }
  const auto [now, before] = std::ranges::mismatch(function.results, earlier.results, same);
  if (now == function.results.end() && before == earlier.results.end()) return std::nullopt;
  const bool more =
      function.results.size() > earlier.results.size() || before == earlier.results.end();
  return of_result(function, earlier, more ? *now : *before, more);
}

// Of two functions that keep more or fewer of the same values: their walks, which begin at what is
// kept, may meet the same calls in another order.
std::optional<Difference> of_kept(const Function& function, const Function& earlier) {
  const bool more = function.results.size() > earlier.results.size();
  if (function.results.size() == earlier.results.size()) return std::nullopt;
  if (function.calls.size() != earlier.calls.size()) return std::nullopt;
  if (likeness(function, earlier).calls < 1) return std::nullopt;
  std::map<std::pair<const Signature*, uint32_t>, int> kept;
  const auto name = [](const Function& of, const Ref& result) {
    if (!result || of.is_parameter(result))
      return std::pair<const Signature*, uint32_t>(nullptr, 0);
    return std::pair(of.calls[of.call_of(result)].signature.get(), result.result);
  };
  const Function &of = more ? function : earlier, &other = more ? earlier : function;
  for (const Ref& result : other.results) ++kept[name(other, result)];
  for (const Ref& result : of.results) {
    if (--kept[name(of, result)] < 0) return of_result(function, earlier, result, more);
  }
  return std::nullopt;
}

}  // namespace

std::optional<Difference> difference(const Function& function, const Function& earlier) {
  const auto [now, before] = std::ranges::mismatch(function.calls, earlier.calls, same_call);
  if (now != function.calls.end() || before != earlier.calls.end()) {
    if (auto kept = of_kept(function, earlier)) return kept;
    return of_calls(function, earlier, static_cast<size_t>(now - function.calls.begin()));
  }
  return of_operands(function, earlier);
}

std::string first_difference(const Function& function, const Function& earlier) {
  const std::optional<Difference> first = difference(function, earlier);
  return first ? "It first differs in this: " + first->str()
               : "Its calls are those of the last, with other memory to reuse";
}

Likeness likeness(const Function& a, const Function& b) {
  std::unordered_map<const lazy::Operator*, int64_t> operators;
  std::unordered_map<const Signature*, int64_t> calls;
  for (const Call& call : a.calls) {
    ++operators[call.signature->op];
    ++calls[call.signature.get()];
  }
  size_t same_operators = 0, same_calls = 0;
  for (const Call& call : b.calls) {
    same_operators += operators[call.signature->op]-- > 0 ? 1 : 0;
    same_calls += calls[call.signature.get()]-- > 0 ? 1 : 0;
  }
  const auto size = static_cast<double>(std::max({a.calls.size(), b.calls.size(), size_t{1}}));
  return {static_cast<double>(same_operators) / size, static_cast<double>(same_calls) / size};
}

}  // namespace torch_xla::executor
