#include "dispatch/record/list_write.h"

#include <algorithm>
#include <limits>

namespace torch_xla::dispatch {
namespace {

bool is_written_list(const c10::Argument& a) {
  return a.alias_info() != nullptr && a.alias_info()->isWrite() &&
         a.type()->kind() == c10::TypeKind::ListType;
}

// Memory that one tensor of a call covers, and the turn at which the call reaches it.
struct Piece {
  const lazy::Storage* storage;
  int64_t begin, end;
  size_t turn;

  Piece(lazy::TensorImpl& impl, size_t turn) : storage(&impl.lazy_storage()), turn(turn) {
    const lazy::Geometry& g = *impl.geometry();
    const auto bytes = static_cast<int64_t>(c10::elementSize(g.dtype));
    begin = impl.storage_offset() * bytes;
    end = begin + (g.numel == 0 ? 0 : g.storage_elements() * bytes);
  }
  bool overlaps(const Piece& other) const {
    return storage == other.storage && begin < other.end && other.begin < end;
  }
};

bool before(const Piece& a, const Piece& b) {
  return a.storage != b.storage ? std::less<>()(a.storage, b.storage) : a.begin < b.begin;
}

// Returns whether any tensor is read or written at a later turn than one that it overlaps was
// written.
bool has_order(const c10::FunctionSchema& schema, const torch::jit::Stack& stack) {
  const size_t base = stack.size() - schema.arguments().size();
  std::vector<Piece> written, read;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::IValue& v = stack[base + i];
    std::vector<Piece>& pieces = is_written_list(schema.arguments()[i]) ? written : read;
    if (v.isTensor()) {
      // Read at every turn.
      lazy::TensorImpl* impl = lazy::as_lazy(v.toTensor());
      if (impl != nullptr) read.emplace_back(*impl, std::numeric_limits<size_t>::max());
    } else if (v.isTensorList()) {
      const auto list = v.toListRef();
      pieces.reserve(pieces.size() + list.size());
      for (size_t turn = 0; turn < list.size(); ++turn) {
        lazy::TensorImpl* impl = lazy::as_lazy(list[turn].toTensor());
        if (impl != nullptr) pieces.emplace_back(*impl, turn);
      }
    }
  }
  std::sort(written.begin(), written.end(), before);
  for (size_t i = 0; i + 1 < written.size(); ++i) {
    if (written[i].overlaps(written[i + 1])) return true;
  }
  // Written pieces are apart from each other now, so their ends are in the same order.
  for (const Piece& r : read) {
    const auto ends_before = [](const Piece& w, const Piece& r) {
      return w.storage != r.storage ? std::less<>()(w.storage, r.storage) : w.end <= r.begin;
    };
    auto it = std::lower_bound(written.begin(), written.end(), r, ends_before);
    for (; it != written.end() && it->overlaps(r); ++it) {
      if (it->turn < r.turn) return true;
    }
  }
  return false;
}

// Fused optimizers, which PyTorch has as kernels that go through their lists.
bool is_fused(const c10::OperatorHandle& op) {
  return op.schema().name().starts_with("aten::_fused_");
}

// The call for one element of each list.
torch::jit::Stack of_turn(const torch::jit::Stack& stack, size_t base, size_t turn) {
  torch::jit::Stack one(stack.begin() + static_cast<std::ptrdiff_t>(base), stack.end());
  for (c10::IValue& v : one) {
    if (!v.isTensorList()) continue;
    const auto list = v.toListRef();
    if (!list.empty()) v = c10::List<at::Tensor>({list[turn].toTensor()});
  }
  return one;
}

}  // namespace

bool writes_list(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(), is_written_list) &&
         (is_fused(op) || op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd));
}

void ListWriteKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                 torch::jit::Stack* stack) {
  if (!has_order(op.schema(), *stack)) return (*recorder_)(op, keys, stack);
  if (!is_fused(op)) {
    return op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, *stack);
  }
  const size_t base = stack->size() - op.schema().arguments().size();
  const size_t turns = (*stack)[base].toListRef().size();
  for (size_t turn = 0; turn < turns; ++turn) {
    torch::jit::Stack one = of_turn(*stack, base, turn);
    (*recorder_)(op, keys, &one);
  }
  stack->resize(base);  // they return nothing
}

}  // namespace torch_xla::dispatch
