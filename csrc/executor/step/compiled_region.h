// CompiledRegion, a part of the user's program that is to be one graph: what torch_xla.compile
// makes of a function or a block.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include <c10/util/ThreadLocalDebugInfo.h>

#include "executor/compile/cause.h"
#include "lazy/function.h"
#include "util/hash.h"

namespace torch_xla::executor {

struct Graph;

class CompiledRegion : public c10::DebugInfoBase {
 public:
  // `whole`: no run may happen before its end. `most_graphs`: how many different graphs it may have
  // over all calls, with those of regions that are `like` it: of the same function.
  CompiledRegion(std::string name, bool whole, std::optional<size_t> most_graphs,
                 const CompiledRegion* like = nullptr);

  // From here to leave(), what this thread does, and the backward passes that it starts, belongs to
  // the region.
  static void enter(std::shared_ptr<CompiledRegion> region);
  static void leave();
  // Returns the one that the calling thread is in, or null.
  static const CompiledRegion* current();

  const std::string& name() const { return name_; }  // empty where it was given none
  // Throws, and tells it, where no run may happen now. `wanted` is what asks for one.
  void check_run(const char* wanted, const Graph& graph, const Cause& cause) const;
  // Throws where the graph of a call would be one too many. The caller of these two holds the
  // GraphLock.
  void check_number(const Graph& graph) const;
  void add(const Graph& graph);

 private:
  // The graphs of all calls of a function, where their number is limited.
  struct Known {
    std::unordered_set<util::Hash128, util::Hash128Hasher> keys;
    std::vector<lazy::Function> functions;
  };

  std::string title() const;

  const std::string name_;
  const bool whole_;
  const std::optional<size_t> most_graphs_;
  const std::shared_ptr<Known> known_;
};

}  // namespace torch_xla::executor
