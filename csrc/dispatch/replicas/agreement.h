// Ranks compare what they exchange before they do: the n-th exchange of a group is the same on each
// of its ranks, however their programs cut what they record. The ranks of a group tell each other
// what they have launched, some exchanges ahead, so that a program costs one small message.
#pragma once

#include <memory>
#include <string>

#include <c10/util/intrusive_ptr.h>

#include "dispatch/replicas/groups.h"
#include "ops/exchange.h"

namespace c10d {
class Work;
}

namespace torch_xla::dispatch {

// An exchange, and where the user called it.
struct Told {
  std::string text, line;

  std::string shown(const char* word) const;
};

// Notes the exchanges of a program that is about to be launched; throws where ranks have disagreed.
// Replicas that begin their programs together compare a new one here, and wait for each other.
void note_exchanges(const std::shared_ptr<const ops::ExchangeNotes>& exchanges, bool begin_together,
                    bool is_new);
// Called when an exchange begins. Waits for the others of its group where they have not told of it,
// and throws where theirs is another one. Returns it with its line.
Told agree(const ReplicaGroup& group, std::string text);

// Waits for others, and lets the job know for what.
void await(const c10::intrusive_ptr<c10d::Work>& work, const Told& what);

// Throws where ranks would have exchanged different things; from then on nothing is exchanged.
void expect_agreement();
bool has_disagreement();

}  // namespace torch_xla::dispatch
