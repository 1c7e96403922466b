// What the tests of this folder share.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <string_view>

#include "model/error.h"

namespace lockstep {

// A new directory that goes away with this object.
class TestDirectory {
 public:
  TestDirectory() {
    static std::atomic<int> counter{0};
    const std::string name = "lockstep" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
    path_ = (std::filesystem::path(testing::TempDir()) / name).string();
    std::filesystem::create_directories(path_);
  }
  ~TestDirectory() { std::filesystem::remove_all(path_); }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  // Writes a file; its name may contain directories.
  std::string Put(const std::string& name, std::string_view bytes) const {
    const std::filesystem::path path = File(name);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path.string();
  }

 private:
  std::string path_;
};

// `action` throws an InputError of one line that contains every one of `parts`.
template <typename Action>
void ExpectInputError(Action action, std::initializer_list<std::string_view> parts) {
  try {
    action();
    ADD_FAILURE() << "no error; expected one about " << *parts.begin();
  } catch (const InputError& error) {
    const std::string_view message = error.what();
    EXPECT_EQ(message.find('\n'), message.npos) << message;
    for (const std::string_view part : parts) {
      EXPECT_NE(message.find(part), message.npos) << "'" << part << "' is not in: " << message;
    }
  }
}

}  // namespace lockstep
