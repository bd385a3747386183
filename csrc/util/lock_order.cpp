#include "util/lock_order.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "util/error.h"
#include "util/hooks.h"

namespace torch_xla::util::lock_order {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"the graph lock", "the compiler",
                                                    "the device",     "the interpreter's lock",
                                                    "the plugin",     "a mutex of a short section"};

std::string_view name_of(Rank rank) { return kNames[static_cast<size_t>(rank)]; }

// Counts how often the calling thread holds each rank.
thread_local std::array<int, kNames.size()> held{};

[[noreturn]] void fail_order(Rank wanted, Rank held) {
  fail(ErrorKind::Runtime, "lock order: expected a thread that waits for ", name_of(wanted),
       " to hold earlier ranks only, got one that holds ", name_of(held),
       ". Let that go first (csrc/util/lock_order.h).");
}

}  // namespace

void check_held(Rank wanted) {
  for (size_t rank = kNames.size(); rank-- > static_cast<size_t>(wanted);) {
    if (held[rank] > 0) fail_order(wanted, static_cast<Rank>(rank));
  }
}

void check(Rank wanted) {
  check_held(wanted);
  const bool holds = hooks.holds_interpreter != nullptr && hooks.holds_interpreter();
  if (wanted < Rank::Interpreter && holds) fail_order(wanted, Rank::Interpreter);
}

void hold(Rank rank) { ++held[static_cast<size_t>(rank)]; }
void let_go(Rank rank) { --held[static_cast<size_t>(rank)]; }

}  // namespace torch_xla::util::lock_order
