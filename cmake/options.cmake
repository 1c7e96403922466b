# Flags of every target. Numerics are a contract: contraction, fast math and flush-to-zero stay off everywhere.
add_library(lockstep_options INTERFACE)
target_compile_options(lockstep_options INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers
  -ffp-contract=off -fno-fast-math -fno-strict-aliasing -fvisibility=hidden)
target_include_directories(lockstep_options INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
if(LOCKSTEP_FUZZERS)
  # Coverage feedback from every library, not only from the targets' own files.
  target_compile_options(lockstep_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

# lockstep_test(name SOURCES... LIBS...): one GoogleTest program, each of its tests a ctest test.
function(lockstep_test name)
  if(NOT LOCKSTEP_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE lockstep_options ${ARG_LIBS} GTest::gtest GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE LOCKSTEP_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 NO_PRETTY_VALUES PROPERTIES TIMEOUT 600)
endfunction()

# lockstep_bench(name SOURCES... LIBS...): one Google Benchmark program.
function(lockstep_bench name)
  if(NOT LOCKSTEP_BENCHES)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE lockstep_options ${ARG_LIBS} benchmark::benchmark benchmark::benchmark_main)
  target_compile_definitions(${name} PRIVATE LOCKSTEP_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
endfunction()

# lockstep_fuzz(name CORPUS dir SOURCES... LIBS...): LLVMFuzzerTestOneInput linked with libFuzzer (Clang, option
# LOCKSTEP_FUZZERS) and with a plain main that replays the committed corpus as a ctest test, so targets cannot rot.
function(lockstep_fuzz name)
  cmake_parse_arguments(ARG "" "CORPUS" "SOURCES;LIBS" ${ARGN})
  if(LOCKSTEP_TESTS)
    add_executable(${name}_replay ${ARG_SOURCES} ${CMAKE_SOURCE_DIR}/harness/fuzz/replay_main.cc)
    target_link_libraries(${name}_replay PRIVATE lockstep_options ${ARG_LIBS})
    add_test(NAME ${name}.CorpusReplay COMMAND ${name}_replay ${ARG_CORPUS})
  endif()
  if(LOCKSTEP_FUZZERS)
    add_executable(${name} ${ARG_SOURCES})
    target_link_libraries(${name} PRIVATE lockstep_options ${ARG_LIBS})
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  endif()
endfunction()
