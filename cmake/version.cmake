# generated/lockstep_version.h: version, commit and numerics version, refreshed at configure time.
find_package(Git QUIET)
set(LOCKSTEP_COMMIT "unknown")
if(Git_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${CMAKE_SOURCE_DIR} rev-parse --short=12 HEAD
    OUTPUT_VARIABLE git_commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE git_result)
  if(git_result EQUAL 0)
    set(LOCKSTEP_COMMIT ${git_commit})
  endif()
endif()
configure_file(${CMAKE_SOURCE_DIR}/cmake/lockstep_version.h.in ${CMAKE_BINARY_DIR}/generated/lockstep_version.h @ONLY)
