// Lending: tensors that a function uses beside its arguments become parameters of it while it is
// recorded, those that it writes included.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "lazy/tensor.h"

namespace torch_xla::lazy {

// Lives in an AsideScope. The first read or write of a storage made before that scope puts a
// placeholder in the place of its value; the end of the Lending gives each its value back. The
// caller holds the GraphLock meanwhile.
class Lending {
 public:
  struct Lent {
    c10::intrusive_ptr<Storage> storage;
    Value before;  // undefined: it was not initialised
    Value placeholder;

    const Value& now() const { return storage->value_; }
    bool is_written() const { return !(now() == placeholder); }
  };

  // Throws where a storage is used that was made after `newest`, an id_boundary() before the scope.
  Lending(int device, uint64_t newest);
  ~Lending();
  Lending(const Lending&) = delete;
  Lending& operator=(const Lending&) = delete;

  // In the order of their first use.
  const std::vector<Lent>& lent() const { return lent_; }

  static bool lives() { return present_ != nullptr; }
  // Called by a storage before it gives its value.
  static void read(Storage& storage) {
    if (present_ != nullptr) [[unlikely]]
      present_->lend(storage);
  }
  // Called by a storage that no scope lets the caller write. Returns whether it may be written
  // here.
  static bool write(Storage& storage);

 private:
  void lend(Storage& storage);

  const int device_;
  const uint64_t newest_;
  const uint64_t scope_;
  std::vector<Lent> lent_;
  std::unordered_map<const Storage*, size_t> places_;
  Lending* const outer_;
  inline static Lending* present_ = nullptr;  // guarded by the GraphLock
};

}  // namespace torch_xla::lazy
