//! What `strace -c` counted.

/// System calls that wait, or wake who waits. A thread that is traced sleeps more often.
const WAITS: [&str; 7] = [
    "futex",
    "epoll_wait",
    "epoll_pwait",
    "restart_syscall",
    "ppoll",
    "clock_nanosleep",
    "sched_yield",
];

/// The system calls in a table of `strace -c`, without those that wait.
#[must_use]
pub fn calls_in(table: &str) -> u64 {
    table
        .lines()
        .filter_map(calls_of)
        .filter(|(name, _)| !WAITS.contains(name))
        .map(|one| one.1)
        .sum()
}

/// Name and count of a row: `% time, seconds, usecs/call, calls, [errors], syscall`.
fn calls_of(line: &str) -> Option<(&str, u64)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (first, name) = (fields.first()?, *fields.last()?);
    first.parse::<f64>().ok()?;
    (name != "total").then_some((name, fields.get(3)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_calls_is_read_with_and_without_errors_and_waits_are_left_out() {
        let table = "% time     seconds  usecs/call     calls    errors syscall\n\
                     ------ ----------- ----------- --------- --------- ------------------\n\
                     \x2090.00  1.000000         100        10         2 futex\n\
                     \x20 6.00  0.100000          50        20           write\n\
                     \x20 4.00  0.100000          50         5         1 openat\n\
                     100.00    1.2                   35         3 total\n";
        assert_eq!(calls_in(table), 25);
    }
}
