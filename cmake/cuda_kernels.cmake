# The kernels of CUDA devices, embedded in the plugin where a usable nvcc is found. -DTRIREME_NVCC=OFF builds none.
# Defines trireme_nvcc: the compiler and the options that decide about bits, or "none".

set(TRIREME_CUDA_ARCHITECTURES "75;80;90;100;120" CACHE STRING "Compute capabilities for which kernels are compiled")
find_program(TRIREME_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
set(trireme_nvcc none)
set(trireme_kernel_source ${PROJECT_SOURCE_DIR}/src/devices/cuda/plugin/kernels.cu)

# Sets `toolkit` and `options`, or `reason` if this nvcc does not serve: it may be too old, for C++20 or for its host
# compiler, and a build goes on without it.
function(trireme_try_nvcc)
  # Without contraction, with exact division and root, and with subnormals an element has the host's bits.
  set(options ${TRIREME_NVCC} -std=c++20 -O3 -fmad=false -prec-div=true -prec-sqrt=true -ftz=false
    --expt-relaxed-constexpr -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include)
  set(reason "")
  set(toolkit 0)
  execute_process(COMMAND ${TRIREME_NVCC} --version OUTPUT_VARIABLE version ERROR_QUIET RESULT_VARIABLE result)
  if(NOT result EQUAL 0 OR NOT version MATCHES "release ([0-9]+)\\.([0-9]+)")
    set(reason "${TRIREME_NVCC} --version does not tell a version")
  elseif(CMAKE_MATCH_1 LESS 12)
    set(reason "${TRIREME_NVCC} is of CUDA ${CMAKE_MATCH_1}.${CMAKE_MATCH_2}, but at least 12.0 is needed")
  else()
    math(EXPR toolkit "${CMAKE_MATCH_1} * 1000 + ${CMAKE_MATCH_2} * 10")
    set(folder ${PROJECT_BINARY_DIR}/CMakeFiles/trireme_nvcc)
    file(WRITE ${folder}/probe.cu "#include <cmath>\n#include <cstdint>\n#include <type_traits>\n"
      "template <class T> concept Number = std::is_arithmetic_v<T>;\n"
      "template <Number T> __device__ T root(T x) { return sqrt(x); }\n"
      "extern \"C\" __global__ void probe(const __grid_constant__ double x, double* out) { *out = root(x); }\n")
    execute_process(
      COMMAND ${options} -fatbin -gencode arch=compute_75,code=compute_75 ${folder}/probe.cu -o ${folder}/probe.fatbin
      OUTPUT_VARIABLE text ERROR_VARIABLE text RESULT_VARIABLE result)
    if(NOT result EQUAL 0)
      string(STRIP "${text}" text)
      set(reason "${TRIREME_NVCC} does not compile a small kernel: ${text}")
    endif()
  endif()
  foreach(name options reason toolkit)
    set(${name} "${${name}}" PARENT_SCOPE)
  endforeach()
endfunction()

# A sanitizer sees nothing in kernels.
if(TRIREME_NVCC AND NOT TRIREME_SANITIZE)
  trireme_try_nvcc()
  if(reason)
    message(STATUS "no kernels: ${reason}")
  else()
    set(trireme_nvcc ${options})
  endif()
endif()

if(NOT trireme_nvcc STREQUAL none)
  execute_process(COMMAND ${TRIREME_NVCC} --list-gpu-code OUTPUT_VARIABLE known)
  set(targets compute_75)
  set(generate -gencode arch=compute_75,code=compute_75)
  foreach(architecture ${TRIREME_CUDA_ARCHITECTURES})
    if("${known}" MATCHES "sm_${architecture}[^0-9a-z]")
      list(APPEND generate -gencode arch=compute_${architecture},code=sm_${architecture})
      list(APPEND targets sm_${architecture})
    else()
      message(STATUS "no kernels for sm_${architecture}: ${TRIREME_NVCC} does not know it")
    endif()
  endforeach()
  list(JOIN targets " " targets)
  set(image ${PROJECT_BINARY_DIR}/trireme_kernels.fatbin)
  add_custom_command(OUTPUT ${image}
    COMMAND ${trireme_nvcc} -MD -MF ${image}.d -fatbin ${generate} ${trireme_kernel_source} -o ${image}
    DEPENDS ${trireme_kernel_source}
    DEPFILE ${image}.d
    COMMENT "Compiling the kernels for ${targets}" VERBATIM)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/devices/cuda/plugin/kernels.cpp PROPERTIES OBJECT_DEPENDS ${image})
  target_compile_definitions(trireme_cuda PRIVATE TRIREME_CUDA_IMAGE="${image}" TRIREME_CUDA_TARGETS="${targets}"
    TRIREME_CUDA_TOOLKIT=${toolkit})
endif()
