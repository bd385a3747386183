#include "executor/stored/tcp_store.h"

namespace torch_xla::executor {

c10::intrusive_ptr<c10d::TCPStore> connect_to_store(const std::string& host, uint16_t port,
                                                    std::chrono::milliseconds time_limit) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;
  options.timeout = time_limit;
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

std::vector<uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace torch_xla::executor
