//! Errors with their causes as one line for an event or a terminal, and errors that are due to the
//! node.

use std::io;

/// An error and its causes in one line. A cause that is in the text already is not repeated.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

/// Whether the error is due to the node: it lacks descriptors, memory or disk space, or its disk
/// fails or takes no writes. Such an error says nothing about the object of the call, and a later
/// try may work.
#[must_use]
pub fn is_of_the_node(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>()
            && let Some(errno) = error.raw_os_error()
        {
            return NODE_TROUBLE.contains(&errno);
        }
        cause = error.source();
    }
    false
}

const NODE_TROUBLE: [i32; 10] = [
    libc::EMFILE,
    libc::ENFILE,
    libc::ENOMEM,
    libc::EAGAIN,
    libc::EIO,
    libc::ENOSPC,
    libc::EDQUOT,
    libc::EROFS,
    libc::ESTALE,
    libc::ETIMEDOUT,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] io::Error);

    #[test]
    fn a_shortage_is_found_through_the_causes_and_a_missing_file_is_none() {
        let outer = |errno| Outer(io::Error::from_raw_os_error(errno));
        assert!(is_of_the_node(&outer(libc::EMFILE)) && is_of_the_node(&outer(libc::EROFS)));
        assert!(!is_of_the_node(&outer(libc::ENOENT)));
        assert!(!is_of_the_node(&Outer(io::Error::other("words"))));
    }
}
