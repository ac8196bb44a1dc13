//! What was meant for a shell, in a file that is HCL.

use super::{in_task, problems};

#[test]
fn what_a_shell_reads_is_named_where_it_stands_with_the_way_to_write_it() {
    for (value, expected) in [
        ("<<EOH\na\nSLEEP=${SLEEP_SECS:-2}\nEOH", "7:7: \"${SLEEP_SECS:-2}\" is not an expression"),
        ("\"x ${1:-$HOME} y\"", "5:11: \"${1:-$HOME}\" is not an expression"),
        ("\"${a} ${b@Q} ${c:?}\"", "5:14: \"${b@Q}\" is not an expression"),
        ("\"${upper(\"${x y}\")}\"", "5:18: \"${x y}\" is not an expression"),
        ("<<EOH\n${file##*/}\nEOH", "6:1: \"${file##*/}\" is not an expression"),
        ("<<EOH\n${x.y}\nEOH", "6:3: neither the file nor Nomad"),
    ] {
        let found = problems(&in_task(&format!("user = {value}")));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(expected), "{found:?} is not {expected}");
        assert!(found[0].contains("write $${ for a literal ${"), "{found:?}");
    }
}
