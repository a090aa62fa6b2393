# Gates: rules of the house as tests.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
function(add_gate name)
  add_test(NAME gate_${name} COMMAND ${ARGN})
  set_tests_properties(gate_${name} PROPERTIES LABELS gate TIMEOUT 300)
endfunction()

add_gate(symbols
  ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/abi/check_symbols.py $<TARGET_FILE:trireme>)

# The others read sources, which are the same in every tree. And an installed library with a sanitizer is no package.
if(TRIREME_SANITIZE)
  return()
endif()
add_gate(package bash ${CMAKE_CURRENT_SOURCE_DIR}/package/check_package.sh ${PROJECT_BINARY_DIR})
add_gate(gates ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/architecture/test_gates.py)
add_gate(runner ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/architecture/test_runner.py)
add_gate(rooms ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/architecture/test_rooms.py)
add_gate(reach ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/architecture/check_reach.py)
add_gate(reach_can_fail
  ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/architecture/test_reach.py)
add_gate(includes ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/architecture/check_includes.py)
add_gate(classes ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/architecture/check_classes.py)
add_gate(prose ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/architecture/check_prose.py)
add_gate(picture
  ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/architecture/draw_rooms.py --check)
add_gate(circles ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/architecture/check_circles.py)
add_gate(bindgen ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/bindgen.py --check)
foreach(formatter clang-format ruff rustfmt)  # each is skipped by itself
  add_gate(format_${formatter}
    ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/format.py --check ${formatter})
  set_tests_properties(gate_format_${formatter} PROPERTIES SKIP_RETURN_CODE 77)
endforeach()
add_gate(failpoints
  ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/architecture/check_failpoints.py)
add_gate(ptx ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/kernels/check_ptx.py ${trireme_kernel_source}
         ${PROJECT_BINARY_DIR}/ptx -- ${trireme_nvcc} -Werror all-warnings -Xcompiler=-Wall,-Wextra,-Wshadow)
set_tests_properties(gate_ptx PROPERTIES SKIP_RETURN_CODE 77)
add_gate(layout ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/abi/check_layout.py)
add_gate(comments ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/abi/check_comments.py)
add_gate(headers ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/abi/check_headers.py)
