#include "lazy/source.h"

#include <array>
#include <atomic>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include "lazy/lock.h"

namespace torch_xla::lazy {
namespace {

std::atomic<SourceReader> reader{nullptr};
std::atomic<bool> stacks_kept{false};
Source& given_place() {  // guarded by GraphLock
  static auto& place = *new Source;
  return place;
}

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
      if (last.next == next) return;  // no gradient function since the call before
      const uint64_t thread = at::RecordFunction::currentThreadId();
      slot(thread, next - 1) = {thread, next - 1, place};
    }
    last = {__builtin_thread_pointer(), next};
  }

  // That of the gradient function which this thread evaluates.
  Source current() {
    const auto node = torch::autograd::get_current_node();
    if (node == nullptr) return {};
    const Call& call = slot(node->thread_id(), node->sequence_nr());
    const bool found = call.thread == node->thread_id() && call.number == node->sequence_nr();
    return found ? call.place : Source();
  }

 private:
  static constexpr uint64_t kSlots = 1 << 16, kThreads = 1 << 12;
  struct Last {
    void* thread = nullptr;
    uint64_t next = 0;
  };
  struct Call {
    uint64_t thread = 0;
    uint64_t number = 0;
    Source place;
  };

  Call& slot(uint64_t thread, uint64_t number) {
    return calls_[(number + thread * 0x9E37) % kSlots];
  }

  std::array<Call, kSlots> calls_;
  std::array<Last, kThreads> last_;  // of each thread; where two share one, some places are lost
};

ForwardCalls& forward_calls() {
  static auto& calls = *new ForwardCalls;
  return calls;
}

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
  if (given_place()) {
    place = given_place();
    return;
  }
  const SourceReader read = reader.load(std::memory_order_acquire);
  if (read == nullptr) return;
  read(stacks_kept.load(std::memory_order_relaxed) ? Frames::All : Frames::Innermost, place);
  if (!place) place = forward_calls().current();
  if (place) forward_calls().add(place);
}

void set_place(Source place) { given_place() = std::move(place); }

std::string source_line() {
  const GraphLock lock;
  Source here;
  take_source(here);
  return here.str();
}

void keep_stacks(bool keep) { stacks_kept.store(keep, std::memory_order_relaxed); }

void set_source_reader(SourceReader function) { reader.store(function, std::memory_order_release); }

}  // namespace torch_xla::lazy
