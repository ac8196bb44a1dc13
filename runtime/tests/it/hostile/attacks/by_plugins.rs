//! By plugins of devices.

use super::Attack;
use crate::hostile::{devices, hangs};

/// A plugin that uses too much.
pub fn plugins() -> Vec<Attack> {
    vec![
        attack!("plugin-spin", "endless loop", ["of processor time"], devices::spin_until_cpu),
        attack!(
            "plugin-spin-wall",
            "endless loop with processor time to spare",
            ["did not answer within"],
            devices::spin_until_wall
        ),
        attack!(
            "plugin-hung-calls",
            "140 calls at once that never end",
            ["did not answer within", "calls of this plugin are under way"],
            hangs::many_calls
        ),
        attack!(
            "plugin-hung-files",
            "calls that sit in a file which does not open",
            ["did not answer within", "no more files", "no leases here"],
            hangs::files
        ),
        on_fingerprint!(
            "plugin-panic",
            "panic",
            "last words that obey no line and a terminal",
            ["the reason stands\\nin two lines\\u{1b}[2J"]
        ),
        attack!("plugin-sleep", "sleeping for ever", ["did not answer within"], devices::sleep),
        on_fingerprint!(
            "plugin-calls",
            "hostcall-flood",
            "host calls for ever",
            ["more than 10000 host calls"]
        ),
        on_fingerprint!(
            "plugin-recursion",
            "stack-overflow",
            "endless recursion",
            ["stack of 512 KiB overflowed"]
        ),
        on_fingerprint!("plugin-memory", "memory-bomb", "all memory", ["memory limit of 64 MiB"]),
        on_fingerprint!(
            "plugin-log-flood",
            "log-flood",
            "100 MB of log",
            ["more than 4194304 bytes", "more than 10000"]
        ),
        on_fingerprint!(
            "plugin-stdout",
            "stdout-flood",
            "unbounded stdout",
            ["more than 10000 host calls"]
        ),
        on_fingerprint!("plugin-random", "random-flood", "randomness for ever", ["more than"]),
        on_fingerprint!(
            "plugin-gigabyte-log",
            "gigabyte-log",
            "a log line of a gigabyte",
            ["out of bounds", "trapped"]
        ),
        attack!(
            "plugin-trap-everywhere",
            "a trap in every export",
            ["5 of 5 trapped"],
            devices::trap_everywhere
        ),
    ]
}

/// A plugin that lies.
pub fn answers() -> Vec<Attack> {
    vec![
        on_fingerprint!(
            "answer-long",
            "long-answer",
            "a million devices",
            ["handed over more than", "memory limit"]
        ),
        on_fingerprint!(
            "answer-huge-text",
            "huge-string",
            "an id of 16 MiB",
            ["handed over more than"]
        ),
        on_fingerprint!(
            "answer-forged",
            "forged-error",
            "a reason that begins another line of the log",
            [r"well\n2026-01-01T00:00:00Z ERROR FORGED\r\u{1b}[2J\u{202e}txt.exe\u{2028}end"]
        ),
        on_fingerprint!(
            "answer-forged-name",
            "forged-name",
            "a name that is written from the other side",
            ["characters that do not show"]
        ),
        on_fingerprint!(
            "answer-endless-reason",
            "endless-error",
            "a reason of half a mebibyte",
            ["… (520192 bytes more)"]
        ),
        on_fingerprint!("answer-utf8", "bad-utf8", "an id that is not UTF-8", ["utf-8", "UTF-8"]),
        on_fingerprint!(
            "answer-overlapping",
            "overlapping",
            "a gibibyte of ids in one mebibyte",
            ["handed over more than"]
        ),
        on_fingerprint!(
            "answer-gigabyte",
            "gigabyte",
            "an id beyond all memory",
            ["out of bounds", "trapped"]
        ),
        on_fingerprint!(
            "answer-gigabyte-list",
            "gigabyte-list",
            "a list beyond all memory",
            ["memory limit", "out of bounds", "trapped"]
        ),
        on_fingerprint!("answer-twice", "duplicate-ids", "one device twice", ["is listed twice"]),
        on_fingerprint!("answer-nan", "nan", "a measure that is not a number", ["broken answer"]),
        attack!(
            "answer-deep",
            "a measurement 100,000 objects deep",
            ["broken answer", "handed over more than"],
            |arena| devices::call(arena, "stats", "deep")
        ),
        attack!(
            "answer-foreign",
            "measuring devices it does not have",
            ["dropped by the manager"],
            devices::foreign
        ),
        attack!(
            "answer-moody",
            "another answer each time",
            ["each answer was taken or refused whole"],
            devices::moody
        ),
        attack!("describe-version", "a version of a thousand digits", ["version"], |arena| {
            devices::call(arena, "describe", "bad-version")
        }),
        attack!("describe-name", "a name that is a path", ["name"], |arena| devices::call(
            arena, "describe", "bad-name"
        )),
        attack!("schema-deep", "a schema 5,000 deep", ["recursion limit"], |arena| devices::call(
            arena,
            "describe",
            "deep-schema"
        )),
        attack!(
            "schema-endless",
            "a schema that is part of itself",
            ["refers to itself"],
            |arena| devices::call(arena, "describe", "endless-schema")
        ),
        attack!(
            "schema-exploding",
            "a schema of 2^40 parts",
            ["more than"],
            |arena| devices::call(arena, "describe", "exploding-schema")
        ),
        attack!(
            "schema-patterns",
            "a schema of a thousand patterns",
            ["its patterns are too many"],
            |arena| devices::call(arena, "describe", "pattern-schema")
        ),
        attack!(
            "schema-large-patterns",
            "a schema of forty patterns of megabytes",
            ["is not a JSON Schema"],
            |arena| devices::call(arena, "describe", "large-pattern-schema")
        ),
    ]
}

/// A plugin at doors that are not its own.
pub fn doors() -> Vec<Attack> {
    vec![
        attack!(
            "plugin-paths",
            "`..`, absolute paths, links, /proc, /dev",
            ["read the granted file and nothing else"],
            devices::paths
        ),
        attack!(
            "answer-authority",
            "mounts, device nodes, loader variables and groups of others in answers",
            ["9 of 9 refused"],
            devices::authority
        ),
        attack!(
            "answer-linked-mount",
            "a link out of a granted directory as a mount",
            ["which leads to"],
            devices::linked_mount
        ),
        attack!("plugin-denied", "using what is denied", ["deny = [\"command\"]"], devices::denied),
        attack!(
            "plugin-race",
            "a directory swapped for a link while it is read",
            ["honest reads"],
            devices::race
        ),
        attack!(
            "plugin-commands",
            "other programs, other and more arguments",
            ["3 of 3 honest, 0 of the others"],
            devices::commands
        ),
        attack!(
            "plugin-command-flood",
            "commands for ever",
            ["host calls", "did not answer within", "of processor time"],
            devices::command_flood
        ),
        attack!(
            "plugin-open-files",
            "files opened and never closed",
            ["no more files"],
            devices::open_files
        ),
        attack!("plugin-pipe", "a pipe that nobody writes to", ["no more files"], devices::pipe),
        attack!(
            "plugin-sockets",
            "an import of sockets",
            ["never granted to plugins", "not granted"],
            devices::sockets
        ),
    ]
}
