//! By WebAssembly that is hard to run or to compile.

use super::Attack;
use crate::hostile::{bytes, modules, tasks};

pub fn by_modules() -> Vec<Attack> {
    vec![
        by_module!(
            "module-memory-at-start",
            "four gibibytes at the start",
            ["memory limit", "memory"],
            modules::LARGE_MEMORY
        ),
        by_module!(
            "module-memories",
            "a hundred memories",
            ["needs more than a guest may have"],
            modules::many_memories(100)
        ),
        by_module!(
            "module-table",
            "a table of a hundred million",
            ["table", "trapped"],
            modules::TABLE
        ),
        by_module!(
            "module-tables",
            "eight tables and memories beyond the sum",
            ["out of memory at"],
            modules::SUM
        ),
        by_module!(
            "module-gigabyte-write",
            "a write of a gigabyte",
            ["exit 48", "out of bounds", "trapped"],
            modules::gigabyte_write()
        ),
        by_module!(
            "module-gigabyte-random",
            "a gigabyte of randomness",
            ["exit", "random", "out of bounds"],
            modules::gigabyte_random()
        ),
        by_module!(
            "module-gigabyte-poll",
            "waiting for sixty million things",
            ["exit", "out of bounds", "handed over", "trapped"],
            modules::gigabyte_poll()
        ),
        by_module!(
            "module-descriptors",
            "twenty thousand forged descriptors",
            ["exit 0"],
            modules::FORGED_DESCRIPTORS
        ),
        by_module!(
            "module-moved-output",
            "output that is printed to after it was moved and closed",
            ["exit 2\na\na\n"],
            modules::MOVED_OUTPUT
        ),
        by_module!(
            "component-forged-handle",
            "a handle it was not given",
            ["unknown handle index", "handle index"],
            modules::forged_handle()
        ),
        by_module!(
            "component-dropped-handle",
            "a handle after it was dropped",
            ["unknown handle index", "handle index"],
            modules::dropped_handle()
        ),
        by_module!(
            "component-dropped-twice",
            "a handle dropped twice",
            ["unknown handle index", "handle index"],
            modules::dropped_twice()
        ),
        by_module!(
            "component-handle-flood",
            "handles for ever",
            ["more than 4096 handles"],
            modules::handle_flood()
        ),
        by_module!(
            "component-gigabyte-call",
            "arguments beyond all memory",
            ["out of bounds"],
            modules::gigabyte_call()
        ),
        by_module!(
            "component-one-handle-often",
            "one handle three million times",
            ["handed over more than"],
            modules::one_handle_often()
        ),
        by_module!(
            "component-realloc",
            "an allocator that never returns",
            ["killed"],
            modules::endless_realloc()
        ),
        by_module!(
            "component-realloc-lies",
            "an allocator that gives memory it has not",
            ["out of bounds", "realloc"],
            modules::lying_realloc()
        ),
    ]
}

pub fn compiling() -> Vec<Attack> {
    vec![
        by_module!(
            "compile-sparse-tables",
            "tables that make megabytes of code of a line each",
            ["out of proportion to the file"],
            modules::sparse_tables(80)
        ),
        by_module!(
            "compile-nothing-to-run",
            "much to compile and nothing to run",
            ["does not export _start"],
            modules::nothing_to_run(5_000)
        ),
        by_bytes!(
            "bytes-million-functions",
            "a million functions",
            ["functions, more than the limit"],
            bytes::functions(1_000_000, 0)
        ),
        by_bytes!(
            "bytes-large-functions",
            "ten thousand functions of three hundred steps",
            ["compiling needs over", "compiling took over"],
            bytes::functions(10_000, 300)
        ),
        by_bytes!(
            "bytes-huge-function",
            "one function of four megabytes",
            ["compiler was killed", "compiling needs over", "compiling took over", "not valid"],
            bytes::functions(1, 700_000)
        ),
        by_bytes!(
            "bytes-deep-blocks",
            "blocks 200,000 deep",
            [
                "compiler was killed",
                "compiling needs over",
                "compiling took over",
                "not valid",
                "compiler failed",
                "compiled"
            ],
            bytes::deep_blocks(200_000)
        ),
        by_bytes!(
            "bytes-deep-components",
            "components 2,000 deep",
            [
                "compiled",
                "not valid",
                "compiler failed",
                "compiler was killed",
                "compiling needs over"
            ],
            bytes::deep_components(2_000)
        ),
        by_bytes!(
            "bytes-lying-section",
            "a section of four gigabytes in twenty bytes",
            ["not valid"],
            bytes::lying_section()
        ),
        by_bytes!(
            "bytes-lying-count",
            "a vector of four thousand million types",
            ["not valid"],
            bytes::lying_count()
        ),
        attack!(
            "bytes-imports",
            "a plugin with two thousand imports",
            ["more than 1000 imports"],
            bytes::many_imports
        ),
        attack!(
            "bytes-other-version",
            "a plugin of another version of the contract",
            ["this agent speaks"],
            bytes::other_version
        ),
    ]
}
