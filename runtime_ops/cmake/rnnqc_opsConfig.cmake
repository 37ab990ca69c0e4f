include(${CMAKE_CURRENT_LIST_DIR}/rnnqc_opsTargets.cmake)
