# Fails if an object built for a wider instruction set defines a weak function outside the namespace ISA: the linker could
# keep that copy for code that also runs on machines without those instructions.
#   cmake -DNM=nm -DISA=avx2 "-DOBJECTS=a.o;b.o" -P check_isa_symbols.cmake
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND ${NM} -C --defined-only ${object} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" symbols "${symbols}")
  foreach(symbol IN LISTS symbols)
    if(symbol MATCHES "^[0-9a-f]+ W " AND NOT symbol MATCHES "::${ISA}::")
      message(SEND_ERROR "${object}: weak function outside namespace ${ISA}: ${symbol}")
    endif()
  endforeach()
endforeach()
