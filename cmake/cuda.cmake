# How device code is compiled.
if(NOT LOCKSTEP_CUDA)
  return()
endif()

enable_language(CUDA)
# CMake 3.25 does not know how this nvcc is told C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_STANDARD_LATEST 20)

# Machine code for each of them, and PTX of the last for devices that come later; "70-virtual" is PTX alone. 90a has Hopper's own instructions
# and no successor.
set(LOCKSTEP_CUDA_ARCHITECTURES 90a CACHE STRING "CUDA architectures to build for, such as 80;89;90a;120")

set(LOCKSTEP_CUDA_GENCODE "")
foreach(arch ${LOCKSTEP_CUDA_ARCHITECTURES})
  string(REGEX REPLACE "-virtual$" "" number ${arch})
  if(number STREQUAL arch)
    list(APPEND LOCKSTEP_CUDA_GENCODE "-gencode=arch=compute_${number},code=sm_${number}")
  endif()
  set(last_is_portable FALSE)
  if(number MATCHES "^[0-9]+$")
    set(last_is_portable TRUE)
  endif()
endforeach()
if(last_is_portable)
  list(APPEND LOCKSTEP_CUDA_GENCODE "-gencode=arch=compute_${number},code=compute_${number}")
endif()

# No fused or approximate arithmetic that is not written: docs/numerics.md.
function(lockstep_cuda_options target)
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES OFF CUDA_RUNTIME_LIBRARY Static)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false -Xptxas=-v ${LOCKSTEP_CUDA_GENCODE}
    -Xcompiler=-ffp-contract=off -diag-suppress=20012>)
endfunction()
