// The `lockstep` program. Exit codes: 0 done, 1 a check failed, 2 bad usage or bad input.
#include <exception>
#include <iostream>
#include <new>
#include <string>

#include "cli/commands.h"
#include "cli/version.h"
#include "model/error.h"

namespace lockstep::cli {
namespace {

constexpr int kCheckFailed = 1;
constexpr int kBadInput = 2;

int Fail(int code, std::string message) {
  for (char& c : message) {
    if (c == '\n') c = ' ';
  }
  std::cerr << "lockstep: " << message << std::endl;
  return code;
}

// The parser itself would only say that a command is missing.
void ExpectKnownCommand(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  std::string names;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() == argv[1]) return;
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  throw InputError("unknown command '" + std::string(argv[1]) + "', expected one of " + names);
}

int Run(int argc, char** argv) {
  CLI::App app{"Runs DeepSeek-V4 and V4.1 checkpoints with reproducible bits", "lockstep"};
  app.require_subcommand(1);
  app.set_version_flag("--version", VersionLine, "Print version, commit, numerics version and devices");
  AddGenerate(app);
  AddLogits(app);
  AddTokenize(app);
  AddDetokenize(app);
  AddEncode(app);
  AddInspect(app);
  AddSynth(app);
  AddCheck(app);
  AddBench(app);
  try {
    ExpectKnownCommand(app, argc, argv);
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::Success& help_or_version) {
    return app.exit(help_or_version);
  } catch (const CLI::ParseError& error) {
    return Fail(kBadInput, error.what());
  } catch (const CheckFailed& error) {
    return Fail(kCheckFailed, error.what());
  } catch (const InputError& error) {
    return Fail(kBadInput, error.what());
  } catch (const std::bad_alloc&) {
    return Fail(kBadInput, "out of memory");
  }
}

}  // namespace
}  // namespace lockstep::cli

int main(int argc, char** argv) { return lockstep::cli::Run(argc, argv); }
