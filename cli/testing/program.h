// The program as its users meet it, for tests: run it, look at its exit code and what it wrote.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/test_util.h"

namespace lockstep {

using nlohmann::json;

inline const std::string kGolden = std::string(LOCKSTEP_SOURCE_DIR) + "/golden";

struct Result {
  int exit_code = -1;
  std::string out, err;
};

inline std::string Slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class Cli : public testing::Test {
 protected:
  Result Lockstep(const std::vector<std::string>& arguments) const {
    const std::string out = dir_.File("stdout"), err = dir_.File("stderr");
    const pid_t child = fork();
    if (child == 0) Exec(arguments, out, err);
    int status = 0;
    waitpid(child, &status, 0);
    return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1, .out = Slurp(out), .err = Slurp(err)};
  }

  json LockstepJson(std::vector<std::string> arguments) const {
    arguments.push_back("--json");
    const Result result = Lockstep(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out, nullptr, false);
  }

  // Exit code 2, nothing on stdout, and one line on stderr that contains each of `parts`.
  void ExpectRefusal(const std::vector<std::string>& arguments, const std::vector<std::string>& parts) const {
    const Result result = Lockstep(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    for (const std::string& part : parts) EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  }

  TestDirectory dir_;

 private:
  [[noreturn]] static void Exec(const std::vector<std::string>& arguments, const std::string& out,
                                const std::string& err) {
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
    dup2(open(out.c_str(), kFlags, 0600), STDOUT_FILENO);
    dup2(open(err.c_str(), kFlags, 0600), STDERR_FILENO);
    std::vector<char*> argv = {const_cast<char*>(LOCKSTEP_BINARY)};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    execv(LOCKSTEP_BINARY, argv.data());
    _exit(127);
  }
};

}  // namespace lockstep
