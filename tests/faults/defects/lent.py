"""Memory of the library that MPI works on without a copy."""

TEST = "unit_test_mpi_lent"
ENGINE = "src/backends/mpi/engine.cpp"

DEFECTS = [
    ("lent: a rank succeeds without a word of the others", ENGINE,
     "  TRIREME_RETURN_IF_ERROR(confirm(operation, ticket, deadline));\n", "", TEST),
    ("lent: a rank hears from one neighbour alone", ENGINE,
     "step < world_size_; step *= 2", "step < 2; step *= 2", TEST),
    ("lent: a failure revokes nothing", ENGINE,
     "if (!ended && twin != nullptr) twin->revoke();", "static_cast<void>(twin);", TEST),
    ("lent: MPI gets the address of the caller", ENGINE,
     "lent.receive = revoking.lent.receive->of(operation.receive);",
     "lent.receive = operation.receive;", TEST),
    ("lent: what went through a revoked twin is a number", ENGINE,
     "if (twin == nullptr || !twin->is_revoked()) continue;", "if (true) continue;", TEST),
    ("lent: memory is lent between hosts", ENGINE,
     "if (!one_host_ || world_size_ == 1 ||", "if (world_size_ == 1 ||", TEST),
    ("lent: a revoked twin keeps the pages of the buffer", "src/backends/twin.cpp",
     "if (revoked_.exchange(true)) return;", "if (revoked_.exchange(true) || true) return;", TEST),
    ("lent: all lend because one does", "src/backends/slots/run.cpp",
     "return std::all_of(flags.begin()", "return std::any_of(flags.begin()", "mpi_openmpi"),
]
