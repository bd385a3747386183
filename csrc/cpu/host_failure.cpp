#include "cpu/host_failure.h"

#include <charconv>
#include <type_traits>

#include <c10/util/Exception.h>

#include "cpu/call_text.h"
#include "util/error.h"

namespace torch_xla::cpu {
namespace {

// Classes of PyTorch's errors that Python tells apart; all others are RuntimeError.
enum class Class : char {
  LinAlg = 'l',
  Index = 'i',
  Value = 'v',
  Type = 't',
  NotImplemented = 'n',
  Memory = 'm',
  Other = 'o',
};

Class class_of(const c10::Error& e) {
  const auto is = [&e]<class T>(std::type_identity<T>) {
    return dynamic_cast<const T*>(&e) != nullptr;
  };
  if (is(std::type_identity<c10::LinAlgError>())) return Class::LinAlg;
  if (is(std::type_identity<c10::IndexError>())) return Class::Index;
  if (is(std::type_identity<c10::ValueError>())) return Class::Value;
  if (is(std::type_identity<c10::TypeError>())) return Class::Type;
  if (is(std::type_identity<c10::NotImplementedError>())) return Class::NotImplemented;
  if (is(std::type_identity<c10::OutOfMemoryError>())) return Class::Memory;
  return Class::Other;
}

[[noreturn]] void throw_as(Class which, const std::string& message) {
  const c10::SourceLocation here = {__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  switch (which) {
    case Class::LinAlg:
      throw c10::LinAlgError(here, message);
    case Class::Index:
      throw c10::IndexError(here, message);
    case Class::Value:
      throw c10::ValueError(here, message);
    case Class::Type:
      throw c10::TypeError(here, message);
    case Class::NotImplemented:
      throw c10::NotImplementedError(here, message);
    case Class::Memory:
      throw c10::OutOfMemoryError(here, message);
    case Class::Other:
      break;
  }
  throw c10::Error(here, message);
}

// A kernel's message within that of the run: the class and the call follow the first.
constexpr std::string_view kFailure = "<torch_xla.host_kernel ", kFailureEnd = "</torch_xla>";

struct Failure {
  Class which;
  int64_t call;
  std::string_view message;
};

std::optional<Failure> failure_in(std::string_view message) {
  const size_t begin = message.find(kFailure);
  if (begin == message.npos) return std::nullopt;
  message.remove_prefix(begin + kFailure.size());
  Failure failure{static_cast<Class>(message.front()), -1, {}};
  message.remove_prefix(1);
  const char* end = message.data() + message.size();
  const char* number_end = std::from_chars(message.data(), end, failure.call).ptr;
  message.remove_prefix(static_cast<size_t>(number_end - message.data()) + 1);  // and the '>'
  failure.message = message.substr(0, message.find(kFailureEnd));
  return failure;
}

}  // namespace

bool can_fail(std::string_view program) {
  return program.find(util::concat(kFailingCallAttribute, " = ")) != program.npos;
}

std::string failure_text(const std::exception& failure, int64_t call) {
  const auto* error = dynamic_cast<const c10::Error*>(&failure);
  const Class which = error == nullptr ? Class::Other : class_of(*error);
  const char* message = error == nullptr ? failure.what() : error->what_without_backtrace();
  return util::concat(kFailure, static_cast<char>(which), call, ">", message, kFailureEnd);
}

std::optional<int64_t> failing_call(std::string_view message) {
  const std::optional<Failure> failure = failure_in(message);
  if (!failure || failure->call < 0) return std::nullopt;
  return failure->call;
}

void rethrow_host_failure(std::string_view message, const std::string& context) {
  const std::optional<Failure> failure = failure_in(message);
  if (failure) throw_as(failure->which, std::string(failure->message) + context);
}

}  // namespace torch_xla::cpu
