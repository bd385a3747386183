// Takes back what a run that failed was to do: storages go back to what they held before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <unordered_set>
#include <vector>

#include "lazy/node.h"

namespace torch_xla::lazy {
class Storage;
}

namespace torch_xla::executor {

struct Program;

// A storage to which a run gives a value, and the data that it held before, while that is there.
struct Overwritten {
  const lazy::Storage* storage;  // it may be gone: who has the leaf is this one
  size_t root = 0;               // of the run, that it gets
  uint64_t leaf = 0;             // Node::id() of that as data
  uint64_t before_leaf;          // that of what it held before
  std::weak_ptr<pjrt::Array> before;
  std::shared_ptr<pjrt::Array> held;  // the same, where only this may go on to need it
  bool donatable;                     // DeviceData::donatable of that data
  const lazy::Geometry* geometry;     // its
};
using OverwrittenStorages = std::vector<Overwritten>;

// Says what a storage that is to hold another value holds now, data. `is_held`: no run is to take
// that over meanwhile.
Overwritten overwritten_by(const lazy::Storage& storage, const lazy::Node& before, bool is_held);
// Does so for `storages`, to which a run of the program on `inputs` gives the results `root_of`
// says, but for those whose data it takes over. Called before they have them. Until the run has
// ended they count as pending (Storage::promise).
OverwrittenStorages overwritten_by(const Program& program,
                                   const std::vector<const lazy::Node*>& inputs,
                                   const std::vector<lazy::Storage*>& storages,
                                   const std::vector<size_t>& root_of);
// Says which leaves they have got.
void note_leaves(OverwrittenStorages& overwritten, const std::vector<lazy::Value>& leaves);

// The calls of a run that its failure is the failure of: all; or where memory was lacking, as the
// exception says, those that are connected with the one that has the largest result. Values that
// tensors began with in the same run (zeros, random numbers) are no part of it.
std::unordered_set<const lazy::Node*> failed_calls(const std::vector<const lazy::Node*>& calls,
                                                   const std::exception_ptr& why);

// Carries out the failure of calls, where PyTorch would have raised: nothing that needs their
// results happens, nor what needs data that is lost (pjrt::Array::loss). A storage that does goes
// back to what it held before the runs of which `overwritten` tells, the first one first, or before
// it was first written so. Where that is gone or there was nothing, it is set aside. Returns
// whether one of `read` needs the calls. Called with the GraphLock.
bool undo(const std::unordered_set<const lazy::Node*>& failed, int device,
          const std::vector<lazy::Value>& read = {}, const OverwrittenStorages& overwritten = {});

}  // namespace torch_xla::executor
