#include "dispatch/replicas/agreement.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "debug/trace.h"
#include "executor/run/doing.h"
#include "util/error.h"
#include "util/hash.h"
#include "util/hooks.h"
#include "util/lock_order.h"
#include "util/unlocked.h"

namespace torch_xla::dispatch {
namespace {

using Members = std::vector<int64_t>;

constexpr int64_t kAhead = 31;  // exchanges that a message tells of

struct Launched {
  const ops::ExchangeNote* note;
  std::shared_ptr<const ops::ExchangeNotes> owner;
};

// The exchanges of a group.
struct Stream {
  std::deque<Launched> launched;  // and have not begun
  int64_t begun = 0;
  int64_t agreed = 0;  // of the next ones
};

struct Agreement {
  util::Mutex mutex{util::Rank::Section};
  std::map<Members, Stream> streams;
  std::set<std::pair<Members, std::string>> compared;  // programs that begin together
  std::string disagreement;
  std::atomic<bool> has_disagreement = false;
};

Agreement& agreement() {
  static auto& it = *new Agreement;  // programs in flight may ask while the process ends
  return it;
}

// The rows of all members, each as long as this replica's.
at::Tensor gathered(const ReplicaGroup& group, at::Tensor row, const Told& what) {
  at::Tensor rows = at::zeros({group.size() * row.numel()}, row.options());
  await(group.backend->_allgather_base(rows, row), what);
  return rows.view({group.size(), row.numel()});
}

std::string side(int64_t rank, const Told& told) {
  return "\n  rank " + std::to_string(rank) + ": " + told.shown(" at ");
}

// All members come here.
[[noreturn]] void disagree(const ReplicaGroup& group, int64_t number, const Told& mine) {
  constexpr size_t kMost = 1 << 16;  // bytes
  const at::Tensor row = at::zeros({kMost}, at::kByte);
  const std::string joined = mine.text + '\n' + mine.line;
  std::memcpy(row.data_ptr(), joined.data(), std::min(joined.size(), kMost - 1));
  const at::Tensor rows = gathered(group, row, mine);
  std::vector<Told> all;
  for (int64_t i = 0; i < group.size(); ++i) {
    const std::string text = static_cast<const char*>(rows[i].data_ptr());
    const size_t end = std::min(text.find('\n'), text.size());
    all.push_back({text.substr(0, end), text.substr(std::min(end + 1, text.size()))});
  }
  const auto other =
      std::ranges::find_if(all, [&](const Told& t) { return t.text != all[0].text; });
  const auto place = std::min<size_t>(static_cast<size_t>(other - all.begin()), all.size() - 1);
  const std::string what =
      "collectives: expected the same of all ranks of group " +
      c10::str(at::IntArrayRef(group.members)) + ", got as its exchange number " +
      std::to_string(number) + ":" + side(group.members[0], all[0]) +
      side(group.members[place], all[place]) +
      "\nAll ranks have to call the same collectives in the same order, on tensors of the same "
      "shapes.";
  {
    const std::lock_guard lock(agreement().mutex);
    agreement().disagreement = what;
    agreement().has_disagreement = true;
  }
  util::fail(util::ErrorKind::Runtime, what);
}

// Returns how many of the next exchanges are the same on all ranks of a group, as far as they know
// by now. The first of them is about to begin.
int64_t count_agreed(const ReplicaGroup& group, int64_t number, std::span<const int64_t> next,
                     const Told& mine) {
  const debug::Span span("wait for the other ranks");
  const at::Tensor row = at::zeros({kAhead + 1}, at::kLong);
  auto* const values = row.mutable_data_ptr<int64_t>();
  values[0] = std::ssize(next);
  std::ranges::copy(next, values + 1);
  const at::Tensor rows = gathered(group, row, mine);
  const auto* const all = rows.const_data_ptr<int64_t>();
  int64_t agreed = std::ssize(next);
  for (int64_t i = 0; i < group.size(); ++i) {
    const auto theirs = std::span(all + i * (kAhead + 1), kAhead + 1);
    agreed = std::min(agreed, theirs[0]);
    const auto differs = std::ranges::mismatch(theirs.subspan(1), next).in2;
    agreed = std::min(agreed, static_cast<int64_t>(differs - next.begin()));
  }
  if (agreed == 0) disagree(group, number, mine);
  return agreed;
}

int64_t hash_of(const std::string& text) {
  return static_cast<int64_t>(util::Hasher().add_bytes(text).finish().low);
}

}  // namespace

std::string Told::shown(const char* word) const { return line.empty() ? text : text + word + line; }

Told agree(const ReplicaGroup& group, std::string text) {
  expect_agreement();
  Told mine{std::move(text), ""};
  std::vector<int64_t> next = {hash_of(mine.text)};
  int64_t number;
  {
    const std::lock_guard lock(agreement().mutex);
    Stream& stream = agreement().streams[group.members];
    number = ++stream.begun;
    auto& launched = stream.launched;
    const auto at = std::ranges::find(
        launched, mine.text, [](const Launched& l) -> const auto& { return l.note->text; });
    if (at == launched.end()) {
      stream.agreed = 0;  // it is outside of programs
    } else {
      mine.line = at->note->line;
      // A program that failed has left those before it.
      stream.agreed = std::max<int64_t>(stream.agreed - (at - launched.begin()), 0);
      launched.erase(launched.begin(), at + 1);
      const auto more = std::min<size_t>(launched.size(), kAhead - 1);
      for (size_t i = 0; stream.agreed == 0 && i < more; ++i) {
        next.push_back(hash_of(launched[i].note->text));
      }
    }
    if (stream.agreed != 0) {
      --stream.agreed;
      return mine;
    }
  }
  const int64_t agreed = count_agreed(group, number, next, mine);
  const std::lock_guard lock(agreement().mutex);
  agreement().streams[group.members].agreed = agreed - 1;
  return mine;
}

namespace {

// Compares a program whose replicas begin together, the first time that it is launched.
void agree_on_program(const std::map<Members, std::vector<Launched>>& exchanges) {
  util::Unlocked unlocked;  // it waits for others
  for (const auto& [members, launched] : exchanges) {
    const std::optional<ReplicaGroup> group = find_replica_group(members, std::ssize(members));
    if (!group) continue;  // the plugin's
    std::string texts;
    for (const Launched& exchange : launched) texts += exchange.note->text + '\n';
    {
      const std::lock_guard lock(agreement().mutex);
      if (!agreement().compared.emplace(members, std::move(texts)).second) continue;
      agreement().streams[members].launched.assign(launched.begin(), launched.end());
    }
    for (const Launched& exchange : launched) agree(*group, exchange.note->text);
  }
  unlocked.end();
}

}  // namespace

void note_exchanges(const std::shared_ptr<const ops::ExchangeNotes>& exchanges, bool begin_together,
                    bool is_new) {
  expect_agreement();
  if (begin_together && !is_new) return;
  std::map<Members, std::vector<Launched>> by_group;
  for (const ops::ExchangeNote& note : *exchanges) {
    Members members = own_group(note.members, note.size);
    if (members.size() > 1) by_group[std::move(members)].push_back({&note, exchanges});
  }
  if (begin_together) return agree_on_program(by_group);
  const std::lock_guard lock(agreement().mutex);
  for (auto& [members, launched] : by_group) {
    std::ranges::move(launched, std::back_inserter(agreement().streams[members].launched));
  }
}

namespace {

// Gloo closes its connections where a wait for one message runs out of time.
bool is_message(const c10d::Work& work) {
  const c10d::OpType type = work.retrieveOpType();
  return type == c10d::OpType::SEND || type == c10d::OpType::RECV ||
         type == c10d::OpType::RECVANYSOURCE;
}

}  // namespace

void await(const c10::intrusive_ptr<c10d::Work>& work, const Told& what) {
  constexpr auto kPatience = std::chrono::milliseconds(500);
  const auto begin = std::chrono::steady_clock::now();
  std::optional<executor::Doing> doing;
  // Others are told of a long wait: for a message at once, which is waited for once.
  for (bool is_over = is_message(*work), is_told = is_over;; is_told = true) {
    if (is_told && !doing) {
      doing.emplace(executor::Note{executor::Work::WaitsForExchange, what.shown(" of "), begin});
    }
    const auto context = [&] {
      const bool tells = doing && util::hooks.tell_job != nullptr;
      return "The exchange was " + what.shown(" of ") + "." +
             (tells ? "\n" + util::hooks.tell_job() : "");
    };
    try {
      work->wait(is_over ? kNoTimeout : kPatience);
      return;
    } catch (c10::Error& error) {
      if (is_over) {
        error.add_context(context());
        throw;
      }
      is_over = work->isCompleted();         // after its time perhaps, and well
    } catch (const std::exception& error) {  // of Gloo
      util::fail(util::ErrorKind::Runtime, std::string(error.what()) + '\n' + context());
    }
  }
}

void expect_agreement() {
  if (!has_disagreement()) return;
  const std::lock_guard lock(agreement().mutex);
  util::fail(util::ErrorKind::Runtime,
             "collectives: expected ranks that have agreed so far. Nothing is exchanged since they "
             "have not:\n" +
                 agreement().disagreement);
}

bool has_disagreement() { return agreement().has_disagreement; }

}  // namespace torch_xla::dispatch
