#include "lazy/node.h"

#include <atomic>
#include <cstddef>
#include <mutex>
#include <new>
#include <utility>

#include "util/diagnostics.h"
#include "util/fork_mutex.h"

namespace torch_xla::lazy {

namespace {

// Memory of nodes, as many as there ever were at one time. The one freed last is given out first,
// so a step's nodes come in the order in which those of the step before it were let go.
class NodePool {
 public:
  void* take() {
    const std::lock_guard lock(mutex_);
    if (free_ == nullptr) grow();
    return std::exchange(free_, free_->next);
  }
  void give(void* memory) {
    const std::lock_guard lock(mutex_);
    free_ = new (memory) Slot{free_};
  }

 private:
  struct Slot {
    Slot* next;
  };
  struct alignas(64) Memory {
    std::byte bytes[sizeof(Node)];
  };

  void grow() {
    constexpr size_t kNodes = 256;
    auto* block = new Memory[kNodes];
    for (size_t i = kNodes; i-- > 0;) free_ = new (&block[i]) Slot{free_};
  }

  util::ForkMutex mutex_;
  Slot* free_ = nullptr;
};

NodePool& pool() {
  static auto& pool = *new NodePool;
  return pool;
}

constexpr uint64_t kBlock = 1 << 16;  // a thread takes so many ids at once
thread_local uint64_t following_id = 0;

uint64_t take_block() {
  static std::atomic<uint64_t> blocks{1};
  return blocks.fetch_add(1, std::memory_order_relaxed) * kBlock;
}

}  // namespace

uint64_t next_id() {
  if (following_id % kBlock == 0) following_id = take_block() + 1;
  return following_id++;
}

uint64_t id_boundary() {
  const uint64_t boundary = take_block();
  following_id = boundary + 1;
  return boundary;
}

void* Node::operator new(size_t) { return pool().take(); }

void Node::operator delete(void* node) { pool().give(node); }

Node::~Node() { release_operands(); }

namespace {

// A sum of two gradients is of no forward call: it is of the line of the newer one.
Source source_of_operands(const Node& node) {
  const Node* newest = nullptr;
  for (const Value& operand : node.operands()) {
    const bool has_source = static_cast<bool>(operand.node->source());
    if (has_source && (newest == nullptr || operand.node->id() > newest->id())) {
      newest = operand.node.get();
    }
  }
  return newest == nullptr ? Source() : newest->source();
}

}  // namespace

c10::intrusive_ptr<Node> make_node(c10::intrusive_ptr<const Signature> signature,
                                   Operands&& operands, Numbers&& numbers, int device,
                                   const Source* source) {
  auto node = c10::make_intrusive<Node>(std::move(signature), std::move(operands),
                                        std::move(numbers), device);
  if (source != nullptr && *source) {
    node->source() = *source;
  } else {
    take_source(node->source());
    if (util::kDiagnostics && !node->source()) node->source() = source_of_operands(*node);
  }
  return node;
}

void Node::become_data(DeviceData data) {
  leaf_geometry_ = &output(0);
  data_ = std::move(data);
  is_data_ = true;
  release_operands();
  numbers_.clear();
  source_ = {};
}

void Node::become_call(c10::intrusive_ptr<const Signature> signature, Operands&& operands,
                       Numbers&& numbers) {
  signature_ = std::move(signature);
  operands_ = std::move(operands);
  numbers_ = std::move(numbers);
  data_ = {};
  leaf_geometry_ = nullptr;
  is_data_ = false;
}

void Node::release_resources() {
  data_ = {};
  release_operands();
}

void Node::release_operands() {
  // Nodes that nobody else holds; each is emptied before it goes, so destructors do not nest.
  c10::SmallVector<c10::intrusive_ptr<Node>, 16> last;
  const auto let_go = [&last](Operands& operands) {
    for (Value& operand : operands) {
      c10::intrusive_ptr<Node> node = std::move(operand.node);
      if (node.use_count() == 1 && !node->operands_.empty()) last.push_back(std::move(node));
    }
    operands.clear();
  };
  let_go(operands_);
  while (!last.empty()) {
    const c10::intrusive_ptr<Node> node = last.pop_back_val();
    let_go(node->operands_);
  }
}

}  // namespace torch_xla::lazy
