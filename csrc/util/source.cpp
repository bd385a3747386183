#include "util/source.h"

#include <atomic>

namespace torch_xla::util {
namespace {

std::atomic<SourceFrames (*)(size_t)> provider{nullptr};

}  // namespace

std::string SourceFrame::str() const {
  return file + ":" + std::to_string(line) + " (" + function + ")";
}

SourceFrames source_frames(size_t max_frames) {
  const auto get = provider.load(std::memory_order_acquire);
  return get == nullptr ? SourceFrames() : get(max_frames);
}

std::string source_line() {
  const SourceFrames frames = source_frames(1);
  return frames.empty() ? "" : frames[0].str();
}

void set_source_provider(SourceFrames (*fn)(size_t)) {
  provider.store(fn, std::memory_order_release);
}

}  // namespace torch_xla::util
