#include "util/file_cache.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <limits>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/log.h"

namespace torch_xla::util {
namespace {

constexpr std::string_view kSuffix = ".program";
constexpr std::string_view kDraftSuffix = ".tmp";
constexpr std::int64_t kNoBound = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMostFiles = 1 << 14;  // looking through them takes 0.1 s on a busy machine
constexpr std::time_t kDraftLife = 3600;      // seconds; its writer has been killed since

enum class Kind { Foreign, Entry, Draft };

// The folder may be one where its user keeps other things, too.
Kind kind_of(std::string_view name) {
  constexpr size_t kDigits = 32;
  if (name.find_first_not_of("0123456789abcdef") != kDigits) return Kind::Foreign;
  name.remove_prefix(kDigits);
  if (name == kSuffix) return Kind::Entry;
  return name.starts_with(kSuffix) && name.ends_with(kDraftSuffix) ? Kind::Draft : Kind::Foreign;
}

// Writes a new file beside `path` and gives it that name: others see the old one or all of it. A
// file that a loss of power cuts short is for the reader to find out; waiting for the disk is not
// worth it.
int write_whole(const std::string& path, std::string_view bytes) {
  std::string draft = path + "." + std::to_string(std::random_device()());
  draft.append(std::to_string(::getpid())).append(kDraftSuffix);
  const int file = ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return errno;
  int error = ::fchmod(file, 0600) == 0 ? 0 : errno;  // whatever the umask
  while (!bytes.empty() && error == 0) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (::close(file) != 0 && error == 0) error = errno;  // where a full disk may first show
  if (error == 0 && ::rename(draft.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) ::unlink(draft.c_str());
  return error;
}

// Creates it and its parents for this user alone.
int make_folder(const std::filesystem::path& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0) {
    if (errno != ENOENT) return errno == EEXIST ? 0 : errno;
    std::filesystem::path parent;
    for (const auto& part : folder.parent_path()) ::mkdir((parent /= part).c_str(), 0700);
    if (::mkdir(folder.c_str(), 0700) != 0) return errno == EEXIST ? 0 : errno;
  }
  return ::chmod(folder.c_str(), 0700) == 0 ? 0 : errno;  // whatever the umask
}

// Who can change a file or a folder, beside this user and root.
std::string writers_of(const struct stat& info) {
  if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    return "user " + std::to_string(info.st_uid) + ", whose it is";
  }
  return (info.st_mode & S_IWOTH) != 0   ? "everybody"
         : (info.st_mode & S_IWGRP) != 0 ? "group " + std::to_string(info.st_gid)
                                         : "";
}

std::string read_all(int file, size_t size) {
  std::string bytes(size, '\0');
  size_t filled = 0;
  while (filled < size) {
    const ssize_t count = ::read(file, bytes.data() + filled, size - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;  // cut short
    filled += static_cast<size_t>(count);
  }
  bytes.resize(filled);
  return bytes;
}

}  // namespace

FileCache::FileCache(std::string folder, bool read_only, std::int64_t bound)
    : folder_(std::move(folder)),
      read_only_(read_only),
      bound_(bound >= 0 ? bound : kNoBound),
      interval_(bound_ / 64),
      unseen_(interval_) {}

int FileCache::open() const {
  if (read_only_) {
    struct stat info = {};
    if (::stat(folder_.c_str(), &info) != 0) return errno;
    if (!S_ISDIR(info.st_mode)) return ENOTDIR;
    return ::access(folder_.c_str(), R_OK | X_OK) == 0 ? 0 : errno;
  }
  if (const int error = make_folder(folder_)) return error;
  // Only an attempt tells: a mount may be read-only, whatever the permissions say.
  const std::string probe = path_of(Hash128());
  const int error = write_whole(probe, "");
  if (error == 0) ::unlink(probe.c_str());
  return error;
}

std::string FileCache::others_who_write() const {
  struct stat info = {};
  return ::stat(folder_.c_str(), &info) == 0 ? writers_of(info) : "";
}

std::string FileCache::path_of(const Hash128& key) const {
  return (folder_ + "/" + key.hex()).append(kSuffix);
}

FileCache::Contents FileCache::read(const Hash128& key) const {
  // Opening a pipe, or reading a device, could wait for ever.
  const int file = ::open(path_of(key).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return {"", errno == ENOENT ? "" : std::strerror(errno)};
  Contents contents;
  struct stat info = {};
  if (::fstat(file, &info) != 0) {
    contents.problem = std::strerror(errno);
  } else if (!S_ISREG(info.st_mode)) {
    contents.problem = "not a regular file";
  } else if (const std::string who = writers_of(info); !who.empty()) {
    contents.problem = "a file that others can write to: " + who;
  } else {
    contents.bytes = read_all(file, static_cast<size_t>(info.st_size));
    if (contents.bytes.empty()) contents.problem = "an empty file";
    if (!read_only_) ::futimens(file, nullptr);  // used now
  }
  ::close(file);
  return contents;
}

int FileCache::write(const Hash128& key, std::string_view bytes) {
  const std::int64_t size = counted(static_cast<std::int64_t>(bytes.size()));
  if (size > bound_) return EFBIG;
  if (const int error = write_whole(path_of(key), bytes)) return error;
  if (unseen_.fetch_add(size) + size > interval_) {
    unseen_ = 0;
    trim();
  }
  return 0;
}

// Small files count for more than they have, so that there are never too many to look through.
std::int64_t FileCache::counted(std::int64_t size) const {
  return bound_ == kNoBound ? size : std::max(size, bound_ / kMostFiles);
}

// Needs no lock: processes that trim at once choose the same files, and one that finds its file
// gone does without.
void FileCache::trim() const {
  struct CachedFile {
    std::int64_t used, size;
    std::string name;
  };
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(folder_.c_str()), ::closedir);
  if (listing == nullptr) return;
  const int folder = ::dirfd(listing.get());
  const std::time_t old = std::time(nullptr) - kDraftLife;
  std::vector<CachedFile> entries;
  std::int64_t total = 0;
  while (const dirent* found = ::readdir(listing.get())) {
    const Kind kind = kind_of(found->d_name);
    struct stat info = {};
    if (kind == Kind::Foreign ||
        ::fstatat(folder, found->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(info.st_mode)) {
      continue;
    }
    if (kind == Kind::Entry) {
      const std::int64_t used = info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec;
      entries.push_back({used, counted(info.st_size), found->d_name});
      total += entries.back().size;
    } else if (info.st_mtime < old) {
      ::unlinkat(folder, found->d_name, 0);
    }
  }
  // Files that this process writes until the next time have to fit, too.
  if (total <= bound_ - interval_) return;
  std::ranges::sort(entries, {}, &CachedFile::used);
  entries.pop_back();  // was just written
  size_t removed = 0;
  for (const CachedFile& entry : entries) {
    if (total <= bound_ - 2 * interval_) break;
    if (::unlinkat(folder, entry.name.c_str(), 0) != 0 && errno != ENOENT) continue;
    total -= entry.size;
    ++removed;
  }
  TXLA_VLOG(1) << folder_ << ": removed the " << removed << " least recently used of "
               << entries.size() + 1 << " files";
}

}  // namespace torch_xla::util
