# The kernels of CUDA devices, embedded in the plugin where nvcc is found. Defines trireme_nvcc: the compiler and the
# options that decide about bits, or "none".

set(TRIREME_CUDA_ARCHITECTURES "80;90;100" CACHE STRING "Compute capabilities for which kernels are compiled")
find_program(TRIREME_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)

# Without contraction, with exact division and root, and with subnormals an element has the host's bits.
set(trireme_nvcc none)
if(TRIREME_NVCC)
  set(trireme_nvcc ${TRIREME_NVCC} -std=c++20 -O3 -fmad=false -prec-div=true -prec-sqrt=true -ftz=false
    --expt-relaxed-constexpr -Werror all-warnings -Xcompiler=-Wall,-Wextra,-Wshadow
    -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include)
endif()
set(trireme_kernel_source ${PROJECT_SOURCE_DIR}/src/devices/cuda/plugin/kernels.cu)

# A sanitizer sees nothing in kernels.
if(TRIREME_NVCC AND NOT TRIREME_SANITIZE)
  execute_process(COMMAND ${TRIREME_NVCC} --version OUTPUT_VARIABLE version)
  execute_process(COMMAND ${TRIREME_NVCC} --list-gpu-code OUTPUT_VARIABLE known)
  string(REGEX MATCH "release ([0-9]+)\\.([0-9]+)" version "${version}")
  math(EXPR toolkit "${CMAKE_MATCH_1} * 1000 + ${CMAKE_MATCH_2} * 10")
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
  file(GLOB_RECURSE formulas CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/kernels/elements/*
       ${PROJECT_SOURCE_DIR}/src/kernels/rule_*.inc)
  add_custom_command(OUTPUT ${image}
    COMMAND ${trireme_nvcc} -fatbin ${generate} ${trireme_kernel_source} -o ${image}
    DEPENDS ${trireme_kernel_source} ${formulas} ${PROJECT_SOURCE_DIR}/src/kernels/rules.inc
            ${PROJECT_SOURCE_DIR}/src/kernels/rules.hpp
    COMMENT "Compiling the kernels for ${targets}" VERBATIM)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/devices/cuda/plugin/kernels.cpp PROPERTIES OBJECT_DEPENDS ${image})
  target_compile_definitions(trireme_cuda PRIVATE TRIREME_CUDA_IMAGE="${image}" TRIREME_CUDA_TARGETS="${targets}"
    TRIREME_CUDA_TOOLKIT=${toolkit})
endif()
