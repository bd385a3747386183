#include "lazy/source.h"

#include <array>
#include <atomic>
#include <unordered_map>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include "lazy/lock.h"
#include "util/diagnostics.h"
#include "util/hooks.h"

namespace torch_xla::lazy {
namespace {

std::atomic<bool> stacks_kept{false};
// These are no statics of functions: each call would look whether they are made. Never destroyed.
Source& given_place = *new Source;  // guarded by GraphLock

// Places of forward calls, by the number that autograd gives the call's gradient function on the
// thread that records it. A later call takes the slot of one that is kSlots calls older.
// Guarded by GraphLock.
class ForwardCalls {
 public:
  void add(const Source& place) {
    const uint64_t next = at::sequence_number::peek();
    // A thread_local would cost more than all the rest.
    Last& last = last_[reinterpret_cast<uintptr_t>(__builtin_thread_pointer()) / 4096 % kThreads];
    if (last.thread == nullptr || last.thread == __builtin_thread_pointer()) {
      if (last.next == next) [[likely]]
        return;  // no gradient function since the call before
      keep(place, next - 1);
    }
    last = {__builtin_thread_pointer(), next};
  }

  // That of the gradient function which this thread evaluates.
  [[gnu::noinline]] Source current() {
    const auto node = torch::autograd::get_current_node();
    if (node == nullptr) return {};
    const ForwardCall& call = slot(node->thread_id(), node->sequence_nr());
    const bool found = call.thread == node->thread_id() && call.number == node->sequence_nr();
    return found ? call.place : Source();
  }

 private:
  static constexpr uint64_t kSlots = 1 << 16, kThreads = 1 << 12;
  struct Last {
    void* thread = nullptr;
    uint64_t next = 0;
  };
  struct ForwardCall {
    uint64_t thread = 0;
    uint64_t number = 0;
    Source place;
  };

  [[gnu::noinline]] void keep(const Source& place, uint64_t number) {
    const uint64_t thread = at::RecordFunction::currentThreadId();
    slot(thread, number) = {thread, number, place};
  }

  ForwardCall& slot(uint64_t thread, uint64_t number) {
    return calls_[(number + thread * 0x9E37) % kSlots];
  }

  std::array<ForwardCall, kSlots> calls_;
  std::array<Last, kThreads> last_;  // of each thread; where two share one, some places are lost
};

ForwardCalls& forward_calls = *new ForwardCalls;

// Names of scopes, by number. Guarded by GraphLock.
struct Scopes {
  std::vector<std::string> names = {""};
  std::unordered_map<std::string, uint32_t> numbers = {{"", 0}};
};

Scopes& scopes() {
  static auto& all = *new Scopes;
  return all;
}

std::atomic<bool> has_scopes{false};  // a thread_local costs more than this
thread_local uint32_t current_scope = 0;

}  // namespace

std::string SourceFrame::str() const {
  return file + ":" + std::to_string(line) + " (" + function + ")";
}

std::string SourceFrame::short_str() const {
  return function.substr(function.rfind('.') + 1) + " (" + file + ":" + std::to_string(line) + ")";
}

SourceFrames Source::frames() const {
  return code.defined() ? code->frames(instruction) : SourceFrames();
}

std::string Source::str() const {
  const SourceFrames all = frames();
  return all.empty() ? "" : all[0].str();
}

void take_source(Source& place) {
  if constexpr (!util::kDiagnostics) return;
  if (given_place) {
    place = given_place;
    return;
  }
  if (util::hooks.read_source == nullptr) return;
  util::hooks.read_source(
      stacks_kept.load(std::memory_order_relaxed) ? Frames::All : Frames::Innermost, place);
  if (!place) {
    place = forward_calls.current();
  } else if (place.scope == 0 && has_scopes.load(std::memory_order_relaxed)) {
    place.scope = current_scope;
  }
  if (place) forward_calls.add(place);
}

void set_place(Source place) { given_place = std::move(place); }

std::string source_line() {
  const GraphLock lock;
  Source here;
  take_source(here);
  return here.str();
}

uint32_t scope_number(const std::string& name) {
  constexpr size_t kMost = 1 << 16;
  const GraphLock lock;
  Scopes& all = scopes();
  auto known = all.numbers.find(name);
  if (known == all.numbers.end() && all.names.size() < kMost) {
    known = all.numbers.emplace(name, static_cast<uint32_t>(all.names.size())).first;
    all.names.push_back(name);
  }
  return known == all.numbers.end() ? 0 : known->second;
}

std::string set_scope(const std::string& name) {
  std::string before = scope_name(current_scope);
  current_scope = scope_number(name);
  has_scopes.store(true, std::memory_order_relaxed);
  return before;
}

std::string scope_name(uint32_t scope) {
  const GraphLock lock;
  return scopes().names[scope];
}

void keep_stacks(bool keep) { stacks_kept.store(keep, std::memory_order_relaxed); }

SourceFrames stack_here() {
  return util::hooks.read_stack == nullptr ? SourceFrames() : util::hooks.read_stack();
}

}  // namespace torch_xla::lazy
