#include "executor/insight/nan_watch.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <iterator>
#include <mutex>
#include <optional>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/any.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "executor/step/sync.h"
#include "lazy/lock.h"
#include "lazy/tensor.h"
#include "pjrt/event.h"
#include "util/flags.h"
#include "util/lock_order.h"
#include "util/unlocked.h"

namespace torch_xla::executor {
namespace {

constexpr size_t kKept = 4;  // runs that may be launched before the first is known to be bad

// The answer to "did this run give NaN?", on its way to the host.
struct Check {
  std::shared_ptr<const KeptRun> run;
  std::shared_ptr<pjrt::Array> found;
  std::shared_ptr<bool> answer;  // the copy keeps it until it has ended
  pjrt::Event copied;
};

struct Watch {
  util::Mutex mutex;
  std::deque<Check> checks;              // the oldest first; guarded by the mutex
  std::atomic<bool> has_checks = false;  // read without the mutex, too
  NanHandler handler;                    // set once
};

Watch& watch() {
  static auto& all = *new Watch;
  return all;
}

thread_local bool is_busy = false;  // an Examining lives

// One value that tells whether any of these has NaN; undefined where none can.
lazy::Value nans_in(const std::vector<lazy::Value>& values, int device) {
  const c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset);
  std::vector<at::Tensor> found;
  for (const lazy::Value& value : values) {
    const lazy::Geometry& g = value.geometry();
    if (!c10::isFloatingType(g.dtype) && !c10::isComplexType(g.dtype)) continue;
    if (g.numel == 0) continue;
    const at::Tensor tensor = lazy::make_tensor(value, &g, device);
    found.push_back(at::any(at::isnan(tensor)));
  }
  if (found.empty()) return {};
  return lazy::as_lazy(at::any(at::stack(found)))->read();
}

}  // namespace

void keep_for_nans() {
  static std::optional<size_t> before;  // guarded by the GraphLock
  const bool on = util::flag::XLA_DEBUG_NANS();
  if (on == before.has_value()) [[likely]]
    return;
  if (on) {
    before = keep_runs(kKept);
    if (*before > kKept) keep_runs(*before);
  } else {
    keep_runs(*std::exchange(before, std::nullopt));
  }
}

void watch_results(const std::vector<lazy::Value>& results, int device) {
  if (is_busy || !util::flag::XLA_DEBUG_NANS()) return;
  std::shared_ptr<const KeptRun> run = newest_kept_run();
  if (run == nullptr) return;
  const Examining examining;
  lazy::Value found = nans_in(results, device);
  if (!found) return;
  std::vector<lazy::Value> values = {std::move(found)};
  materialize(values, device, kExamined);
  Check check{std::move(run), values[0].node->data().array, std::make_shared<bool>(false), {}};
  check.copied = check.found->buffer(0).copy_to_host(check.answer.get(), 1);
  check.copied.on_ready([kept = check.answer](std::exception_ptr) {});
  const std::lock_guard lock(watch().mutex);
  watch().checks.push_back(std::move(check));
  watch().has_checks = true;
}

bool has_nan_checks() { return watch().has_checks; }

void report_nans(int device, bool wait) {
  if (is_busy) return;
  std::shared_ptr<const KeptRun> bad;
  while (bad == nullptr) {
    Check check;
    {
      const std::lock_guard lock(watch().mutex);
      std::deque<Check>& checks = watch().checks;
      const auto next =
          std::ranges::find(checks, device, [](const Check& c) { return c.run->device; });
      if (next == checks.end() || (!wait && !next->copied.ready())) return;
      check = std::move(*next);
      checks.erase(next);
      watch().has_checks = !checks.empty();
    }
    try {
      const util::Unlocked unlocked;
      util::about_to_wait_for(util::Rank::Device);
      check.copied.await();
    } catch (const pjrt::Error&) {
      continue;  // whoever reads the values of the run gets the failure
    }
    if (*check.answer) bad = std::move(check.run);
  }
  {
    std::deque<Check> dropped;  // let go without the mutex: they may wait for any lock
    const std::lock_guard lock(watch().mutex);
    std::deque<Check>& checks = watch().checks;
    const auto others = std::ranges::stable_partition(
        checks, [&](const Check& c) { return c.run->device != device; });
    std::ranges::move(others, std::back_inserter(dropped));
    checks.erase(others.begin(), others.end());
    watch().has_checks = !checks.empty();
  }
  const Examining examining;
  if (watch().handler) watch().handler(std::move(bad));
}

Examining::Examining() : outer_(std::exchange(is_busy, true)) {}
Examining::~Examining() { is_busy = outer_; }

void set_nan_handler(NanHandler handler) { watch().handler = std::move(handler); }

}  // namespace torch_xla::executor
