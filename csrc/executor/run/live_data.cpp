#include "executor/run/live_data.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>
#include <utility>

#include "debug/metrics.h"
#include "executor/run/array_types.h"
#include "executor/run/runtime.h"
#include "lazy/lock.h"
#include "spmd/sharding.h"
#include "util/diagnostics.h"
#include "util/fork_mutex.h"

namespace torch_xla::executor {
namespace {

// An array with what is told of it, in a list of all of them.
struct Counted {
  pjrt::Array array;
  const int device;
  lazy::Source maker = {};
  Counted *previous = nullptr, *next = nullptr;

  Counted(pjrt::Array&& given, int given_device);
  ~Counted();
};

class Registry {
 public:
  void add(Counted& data) {
    const std::lock_guard lock(mutex_);
    data.next = first_;
    if (first_ != nullptr) first_->previous = &data;
    first_ = &data;
  }
  void remove(Counted& data) {
    const std::lock_guard lock(mutex_);
    (data.previous != nullptr ? data.previous->next : first_) = data.next;
    if (data.next != nullptr) data.next->previous = data.previous;
  }
  // An array stays while it is in here.
  template <class F>
  void for_each(F&& visit) {
    const std::lock_guard lock(mutex_);
    for (Counted* data = first_; data != nullptr; data = data->next) visit(*data);
  }

 private:
  util::ForkMutex mutex_;
  Counted* first_ = nullptr;
};

Registry& registry() {
  static auto& all = *new Registry;
  return all;
}

Counted::Counted(pjrt::Array&& given, int given_device)
    : array(std::move(given)), device(given_device) {
  static const debug::Counter created("CreateDataHandles");
  created.add();
}

Counted::~Counted() {
  static const debug::Counter destroyed("DestroyDataHandles");
  if constexpr (util::kDiagnostics) registry().remove(*this);
  destroyed.add();
}

int64_t bytes_of(const pjrt::Array& array) {
  int64_t bytes = 0;
  for (size_t i = 0; i < array.num_buffers(); ++i) {
    int64_t elements = 1;
    for (const int64_t size : array.buffer(i).dims()) elements *= size;
    bytes += elements * static_cast<int64_t>(c10::elementSize(held_dtype(array)));
  }
  return bytes;
}

}  // namespace

std::string size_text(int64_t bytes) {
  char text[32];
  const double size = static_cast<double>(bytes);
  if (bytes < 1'000'000) {
    std::snprintf(text, sizeof(text), "%.1f kB", size / 1e3);
  } else if (bytes < 1'000'000'000) {
    std::snprintf(text, sizeof(text), "%.1f MB", size / 1e6);
  } else {
    std::snprintf(text, sizeof(text), "%.2f GB", size / 1e9);
  }
  return text;
}

lazy::Value data_value(const lazy::Geometry* geometry, int device, lazy::DeviceData data) {
  return {c10::make_intrusive<lazy::Node>(geometry, device, std::move(data)), 0};
}

lazy::DeviceData counted(pjrt::Array&& array, int device, const lazy::Source* maker) {
  auto data = std::make_shared<Counted>(std::move(array), device);
  if constexpr (util::kDiagnostics) {
    if (maker != nullptr) {
      data->maker = *maker;
    } else {
      const lazy::GraphLock lock;
      lazy::take_source(data->maker);
    }
    registry().add(*data);
  }
  pjrt::Array* const pointer = &data->array;
  return {std::shared_ptr<pjrt::Array>(std::move(data), pointer), true};
}

std::vector<LiveData> live_data() {
  std::vector<LiveData> all;
  const lazy::GraphLock lock;  // arrays are sent to further devices under it
  registry().for_each([&](const Counted& data) {
    const pjrt::Array& array = data.array;
    if (array.is_deleted()) return;
    std::string type = c10::toString(held_dtype(array));
    const char* before = "[";
    for (const int64_t size : array.dims()) {
      type += before + std::to_string(size);
      before = ",";
    }
    type += array.dims().empty() ? "[]" : "]";
    const lazy::Geometry* g = lazy::intern_contiguous(held_dtype(array), array.dims());
    all.push_back(
        {&array, data.device, bytes_of(array), std::move(type), xla_shape(*g), data.maker});
  });
  return all;
}

std::string line_of(const pjrt::Array& array) {
  std::string line;
  registry().for_each([&](const Counted& data) {
    if (&data.array == &array) line = data.maker.str();
  });
  return line;
}

int64_t live_bytes(int device) {
  const bool is_shared = Runtime::get().device_type() == "CPU";
  int64_t bytes = 0;
  const lazy::GraphLock lock;
  registry().for_each([&](const Counted& data) {
    const pjrt::Array& array = data.array;
    if (array.num_buffers() == 0 || array.is_deleted()) return;
    if (is_shared) {
      bytes += bytes_of(array);
    } else if (data.device == device) {
      bytes += bytes_of(array) / static_cast<int64_t>(array.num_buffers());
    }
  });
  return bytes;
}

void note_lost_data(int device, const std::string& why) {
  registry().for_each([&](Counted& data) {
    pjrt::Array& array = data.array;
    if (data.device != device || array.num_buffers() == 0 || array.is_deleted()) return;
    if (array.loss() != nullptr) return;
    try {
      for (size_t i = 0; i < array.num_buffers(); ++i) {
        const pjrt::Event made = array.buffer(i).ready();
        if (made.ready()) made.await();
      }
    } catch (const pjrt::Error&) {
      array.set_loss(why);
    }
  });
}

std::string describe_live_data() {
  constexpr size_t kMost = 5;
  struct Line {
    int64_t bytes = 0;
    size_t count = 0;
  };
  std::map<std::string, Line> by_line;
  Line all;
  for (const LiveData& data : live_data()) {
    Line& line = by_line[data.maker.str()];
    for (Line* of : {&line, &all}) {
      of->bytes += data.bytes;
      ++of->count;
    }
  }
  if (all.count == 0) return "";
  std::vector<std::pair<std::string, Line>> lines(by_line.begin(), by_line.end());
  std::ranges::sort(lines,
                    [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  std::string text = "\nAlive are " + std::to_string(all.count) + " tensors of " +
                     size_text(all.bytes) + ", by the lines that made them:";
  for (size_t i = 0; i < std::min(lines.size(), kMost); ++i) {
    const auto& [place, line] = lines[i];
    text += "\n  " + size_text(line.bytes) + "  " + std::to_string(line.count) +
            (line.count == 1 ? " tensor  " : " tensors  ") + (place.empty() ? "no line" : place);
  }
  if (lines.size() > kMost)
    text += "\n  and " + std::to_string(lines.size() - kMost) + " other lines";
  return text + "\ntorch_xla.debug.memory_snapshot() tells what they are.";
}

}  // namespace torch_xla::executor
