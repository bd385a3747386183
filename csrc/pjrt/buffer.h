// Data on devices: a Buffer lies on one device, an Array on several.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pjrt/device.h"
#include "pjrt/event.h"
#include "spmd/sharding.h"

namespace torch_xla::pjrt {

using DType = PJRT_Buffer_Type;

// Returns the bytes of one element in host memory (4-bit types take a whole byte there); 0 for
// tokens and unknown types.
size_t host_element_size(DType dtype);
// Returns "F32" for PJRT_Buffer_Type_F32.
std::string dtype_name(DType dtype);

// Element type and dimensions of an array on a device.
struct ArrayType {
  DType dtype = PJRT_Buffer_Type_INVALID;
  std::vector<int64_t> dims;
};
// Puts the type of a new buffer into a block that keeps the client alive.
std::shared_ptr<const ArrayType> owned(ArrayType type, const Client& client);

enum class HostSemantics {
  ImmutableOnlyDuringCall,  // copied before the call returns
  UntilTransferCompletes,   // the caller keeps the memory unchanged until on_done
  ZeroCopy,                 // the buffer may alias the memory (never written to) until on_done
  MutableZeroCopy,          // the same, and a donation may write into the memory
};

// Owns an array on one device.
class Buffer {
 public:
  // Makes a buffer from host memory. `dims` empty is a scalar; `byte_strides` empty is dense
  // row-major. `on_done` (may be null) runs once when the plugin no longer needs the memory, on any
  // thread; it is dropped without running when the call throws.
  static std::unique_ptr<Buffer> from_host(const Client& client, const void* data, DType dtype,
                                           std::span<const int64_t> dims,
                                           std::optional<std::span<const int64_t>> byte_strides,
                                           HostSemantics semantics, const Device& device,
                                           std::function<void()> on_done = nullptr);
  // Makes a buffer over dense row-major device memory that another library owns; `on_done` as
  // above.
  static std::unique_ptr<Buffer> view_of_device_memory(const Client& client, void* data,
                                                       DType dtype, std::span<const int64_t> dims,
                                                       const Device& device,
                                                       std::function<void()> on_done);

  // `type` keeps `client` alive too (`owned`), so that a buffer counts one reference only.
  Buffer(std::shared_ptr<const ArrayType> type, const Client* client, PJRT_Buffer* buffer)
      : type_(std::move(type)), client_(client), buffer_(buffer) {}
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { reset(); }

  DType dtype() const { return type_->dtype; }
  const std::vector<int64_t>& dims() const { return type_->dims; }
  // Returns the bytes of a dense row-major copy in host memory.
  size_t host_size() const;
  // Returns an event that is ready once the contents are there, or the computation that makes them
  // has failed.
  Event ready() const;
  // Copies into `dst` in dense row-major order; `size` must be at least host_size(). `dst` must
  // stay valid until the event is ready.
  Event copy_to_host(void* dst, size_t size) const;
  // Returns the address of the contents, which may not be ready yet. It is valid until the buffer
  // dies or is donated.
  void* unsafe_pointer() const;
  // Returns the address for use outside of the plugin, which leaves the contents there until
  // unshare(). Do not donate the buffer before: the CPU plugin takes a copy instead, others fail.
  void* share() const;
  void unshare() const noexcept;
  bool is_on_cpu() const;
  // Returns true after delete_() and after the buffer was donated to an execution.
  bool is_deleted() const;
  // Releases the device memory when work in flight has finished with it; the object stays.
  void delete_();
  std::unique_ptr<Buffer> copy_to_device(const Device& device) const;
  Device device() const;
  PJRT_Buffer* handle() const { return buffer_; }

 private:
  friend class Array;
  void reset() noexcept;

  std::shared_ptr<const ArrayType> type_;
  const Client* client_;  // kept alive by type_
  PJRT_Buffer* buffer_;
};

// A value on the devices that a program runs on: its shape, its sharding, and one buffer on each of
// Devices::mine, in their order.
class Array {
 public:
  // Nearly all arrays have one buffer, which needs no memory of its own.
  explicit Array(Buffer first) : first_(std::move(first)) {}
  void add(Buffer other) { others_.push_back(std::make_unique<Buffer>(std::move(other))); }

  // Copies dense row-major host memory to each device; `data` is free again on return.
  static Array from_host(const Client& client, const void* data, DType dtype,
                         std::span<const int64_t> dims, std::span<const Device> devices);
  // A value that is still in dense row-major host memory; extend_to() sends each device of this
  // process what it is to hold, a part padded with zeros where parts would not be equal, and lets
  // the memory go.
  static Array on_host(const Client& client, std::shared_ptr<const void> data, DType dtype,
                       std::span<const int64_t> dims, const spmd::Sharding* sharding);
  // A value of one device whose run is still to be launched: fulfil() gives it its buffer.
  static Array promise(const Client& client, DType dtype, std::span<const int64_t> dims);
  bool is_promise() const {
    return first_.handle() == nullptr && host_data() == nullptr && loss() == nullptr;
  }
  void fulfil(Array&& made);
  // Returns whether its owner lets a run take the memory over, whoever else refers to the value.
  bool is_offered() const { return rare_ != nullptr && rare_->is_offered; }
  void set_offered(bool offered) {
    if (offered != is_offered()) rare().is_offered = offered;
  }
  // The rest of a value whose memory was given away: its type, and why it is gone, as loss().
  static Array given_away(const Array& value, std::string why);
  bool is_given_away() const { return num_buffers() == 0 && loss() != nullptr; }
  // Counts the runs that wait to be launched and read the value. Guarded by their queue's lock.
  long waiting_runs() const { return waiting_runs_; }
  void add_waiting_runs(long more) { waiting_runs_ += more; }
  // Copies the whole value to other devices.
  Array copy_to(const Devices& devices) const;
  // Copies the value to the devices that lack it; those of this process begin with the ones that
  // have it. Returns the bytes that were sent from the host.
  size_t extend_to(const Devices& devices);
  // Says that each buffer is the part of a value of these sizes that the sharding gives its device.
  void set_sharding(const spmd::Sharding* sharding, std::vector<int64_t> dims);

  DType dtype() const { return first_.dtype(); }
  const std::vector<int64_t>& dims() const {
    return sharding() == nullptr ? first_.dims() : rare_->dims;
  }
  // Null where each device has the whole value.
  const spmd::Sharding* sharding() const { return rare_ == nullptr ? nullptr : rare_->sharding; }
  // The value, where it is still in host memory, else null.
  const std::shared_ptr<const void>& host_data() const {
    static const std::shared_ptr<const void> none;
    return rare_ == nullptr ? none : rare_->host_data;
  }
  // Returns a buffer with all of the value. Throws FAILED_PRECONDITION where there is none: each
  // has a part of it, or the value is in host memory.
  const Buffer& whole() const;
  size_t num_buffers() const { return first_.handle() == nullptr ? 0 : 1 + others_.size(); }
  const Buffer& buffer(size_t i) const { return i == 0 ? first_ : *others_[i - 1]; }

  // Returns whether a run took the memory over. Where that run failed, the value is lost and loss()
  // describes the failure; loss() is null for all other arrays.
  bool is_deleted() const { return num_buffers() != 0 && first_.is_deleted(); }
  void set_loss(std::string why) { rare().loss = std::move(why); }
  const std::string* loss() const {
    return rare_ == nullptr || rare_->loss.empty() ? nullptr : &rare_->loss;
  }

 private:
  // Few arrays have these.
  struct Rare {
    const spmd::Sharding* sharding = nullptr;
    std::vector<int64_t> dims;  // of the whole value, where there is a sharding
    std::shared_ptr<const void> host_data;
    std::string loss;
    bool is_offered = false;
  };
  Rare& rare() {
    if (rare_ == nullptr) rare_ = std::make_unique<Rare>();
    return *rare_;
  }

  Buffer first_;
  std::vector<std::unique_ptr<Buffer>> others_;  // each stays where it is when others come
  std::unique_ptr<Rare> rare_;
  long waiting_runs_ = 0;
};

}  // namespace torch_xla::pjrt
