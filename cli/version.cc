#include "cli/version.h"

#include "kernels/device/backend.h"
#include "lockstep_version.h"
#include "model/numerics_version.h"

namespace lockstep::cli {

std::vector<std::string> CompiledDevices() {
  if (kernels::BuiltWithCuda()) return {"cpu", "cuda"};
  return {"cpu"};
}

std::string VersionLine() {
  std::string line = "lockstep " LOCKSTEP_VERSION " (commit " LOCKSTEP_COMMIT "), numerics " +
                     std::to_string(kNumericsVersion) + ", devices:";
  for (const std::string& device : CompiledDevices()) line += " " + device;
  return line;
}

}  // namespace lockstep::cli
