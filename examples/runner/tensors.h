// Tensors in host memory, and safetensors files of them: eight bytes with the length of a header,
// the header, which is JSON, and the elements.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "pjrt/buffer.h"

namespace runner {

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

struct DType {
  std::string_view name;         // PyTorch's
  std::string_view safetensors;  // in files
  torch_xla::pjrt::DType pjrt;
  size_t size;                       // of an element, in bytes
  std::string (*text)(const char*);  // prints an element
};
const DType* dtype_named(std::string_view name);

struct Type {
  const DType* dtype = nullptr;
  std::vector<int64_t> shape;

  bool operator==(const Type&) const = default;
  size_t bytes() const;  // throws where they are more than there can be
  std::string str() const;
};

struct Tensor {
  Type type;
  std::span<const char> bytes;  // row-major
};

// Prints the first elements.
std::string elements_of(const Tensor& tensor);

// Owns what is read of a file.
class TensorFile {
 public:
  // Throws where the file is not of this format, whatever it holds.
  explicit TensorFile(const std::filesystem::path& path);

  // Throws where there is none of this name, or check() where it is of another type.
  const Tensor& at(const std::string& name) const;
  void check(const std::string& name, const Type& type) const;

 private:
  std::filesystem::path path_;
  std::vector<char> bytes_;
  std::map<std::string, Tensor> tensors_;
};

// Writes beside the file, then takes its place.
void write_tensors(const std::filesystem::path& path, const std::map<std::string, Tensor>& tensors);

// The bytes of a file. Throws where it cannot be read.
std::vector<char> read_file(const std::filesystem::path& path);

}  // namespace runner
