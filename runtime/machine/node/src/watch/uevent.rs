//! Parser of the kernel's messages about devices that come, go or change.
//!
//! ```text
//! "add@/devices/pci0000:00/…\0ACTION=add\0DEVPATH=/devices/…\0SUBSYSTEM=usb\0SEQNUM=4711\0"
//! ```
//! The bytes are untrusted: they are bounded, checked against themselves, and refused as a whole.
//! The socket decides whether the kernel sent them, not this parser.

use ostler_model::limits::{UEVENT_BYTES_MAX, UEVENT_FIELDS_MAX};

/// Longest name of an action or a subsystem, bytes; the kernel's own are below 20.
const WORD_BYTES_MAX: usize = 64;

/// One message of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uevent<'a> {
    /// `add`, `remove`, `change`, `bind`, …: the kernel may have more.
    pub action: &'a str,
    /// The device below `/sys`, from `/devices/…`.
    pub devpath: &'a str,
    /// Its subsystem, for example `usb`. Absent for objects that belong to none.
    pub subsystem: Option<&'a str>,
}

/// Why some bytes are not a message of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UeventError {
    /// The message is longer than any that the kernel can send.
    #[error("a kernel event has {bytes} bytes; at most {UEVENT_BYTES_MAX}")]
    TooLong {
        /// Length of the message, bytes.
        bytes: usize,
    },
    /// The message has more fields than the kernel can send.
    #[error("a kernel event has more than {UEVENT_FIELDS_MAX} fields")]
    TooManyFields,
    /// The message is not UTF-8 text.
    #[error("a kernel event is not UTF-8")]
    NotText,
    /// The first field is not `ACTION@DEVPATH`.
    #[error("a kernel event does not begin with ACTION@/DEVPATH")]
    Header,
    /// A field is not `KEY=VALUE`, is there twice, or contradicts the first one.
    #[error("a kernel event has a wrong field {key:?}")]
    Field {
        /// Key of the wrong field, cut.
        key: String,
    },
}

/// Read one message.
///
/// # Errors
/// [`UeventError`] when it is not what the kernel sends.
pub fn parse(bytes: &[u8]) -> Result<Uevent<'_>, UeventError> {
    if bytes.len() > UEVENT_BYTES_MAX {
        return Err(UeventError::TooLong { bytes: bytes.len() });
    }
    let text = std::str::from_utf8(bytes).map_err(|_| UeventError::NotText)?;
    let mut fields = text.strip_suffix('\0').unwrap_or(text).split('\0');
    let header = fields.next().and_then(|first| first.split_once('@'));
    let (action, devpath) = header.ok_or(UeventError::Header)?;
    if !is_word(action) || !devpath.starts_with('/') {
        return Err(UeventError::Header);
    }
    let mut subsystem = None;
    let mut known = [false; 3];
    for (index, field) in fields.enumerate() {
        if index >= UEVENT_FIELDS_MAX {
            return Err(UeventError::TooManyFields);
        }
        let Some((key, value)) = field.split_once('=') else { return Err(wrong_field(field)) };
        let fits = match key {
            "ACTION" => !std::mem::replace(&mut known[0], true) && value == action,
            "DEVPATH" => !std::mem::replace(&mut known[1], true) && value == devpath,
            "SUBSYSTEM" => {
                subsystem = Some(value);
                !std::mem::replace(&mut known[2], true) && is_word(value)
            }
            // Drivers add keys of their own, and some of them twice.
            _ => !key.is_empty(),
        };
        if !fits {
            return Err(wrong_field(key));
        }
    }
    Ok(Uevent { action, devpath, subsystem })
}

/// Letters, digits and `-_.:`; the names of kernel objects and actions.
fn is_word(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    (1..=WORD_BYTES_MAX).contains(&text.len()) && text.chars().all(fits)
}

fn wrong_field(key: &str) -> UeventError {
    UeventError::Field { key: key.chars().take(WORD_BYTES_MAX).collect() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use proptest::prelude::*;

    use super::*;

    const USB: &str = "add@/devices/pci0000:00/usb1/1-1\0ACTION=add\0\
                       DEVPATH=/devices/pci0000:00/usb1/1-1\0SUBSYSTEM=usb\0DEVTYPE=usb_device\0\
                       PRODUCT=46d/c31c/6400\0SEQNUM=4711\0";

    #[test]
    fn a_message_of_the_kernel_is_read() {
        let event = parse(USB.as_bytes()).unwrap();
        let devpath = "/devices/pci0000:00/usb1/1-1";
        assert_eq!(event, Uevent { action: "add", devpath, subsystem: Some("usb") });
        let bare = parse(b"remove@/devices/virtual/x").unwrap();
        assert_eq!(bare.subsystem, None);
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let field = |key: &str| Err(UeventError::Field { key: key.to_owned() });
        assert_eq!(parse(USB.replace("=add", "=remove").as_bytes()), field("ACTION"));
        assert_eq!(parse(USB.replace("DEVPATH=/d", "DEVPATH=/x").as_bytes()), field("DEVPATH"));
        let twice = format!("{USB}SUBSYSTEM=pci\0");
        assert_eq!(parse(twice.as_bytes()), field("SUBSYSTEM"));
        assert_eq!(parse(USB.replace("=usb\0", "=\0").as_bytes()), field("SUBSYSTEM"));
        assert_eq!(parse(USB.replace("=usb\0", "=u b\0").as_bytes()), field("SUBSYSTEM"));
        assert_eq!(parse(USB.replace("SEQNUM=", "=").as_bytes()), field(""));
        assert_eq!(parse(format!("{USB}word\0").as_bytes()), field("word"));
    }

    #[test]
    fn what_other_processes_send_is_not_taken_for_the_kernels() {
        // The user-space daemon's messages begin with their own name and a binary header.
        let udev = b"libudev\0\xfe\xed\xca\xfe(\0\0\0(\0\0\0";
        assert_eq!(parse(udev), Err(UeventError::NotText));
        for none in ["", "@", "@/x", "add", "add@", "add@x", "a b@/x", "\0add@/x"] {
            assert_eq!(parse(none.as_bytes()), Err(UeventError::Header), "{none:?}");
        }
    }

    #[test]
    fn bounds_hold() {
        let long = format!("add@/{}", "x".repeat(UEVENT_BYTES_MAX));
        assert!(matches!(parse(long.as_bytes()), Err(UeventError::TooLong { .. })));
        let fields = |count| format!("add@/x\0{}", "A=1\0".repeat(count));
        assert!(parse(fields(UEVENT_FIELDS_MAX).as_bytes()).is_ok());
        let many = fields(UEVENT_FIELDS_MAX + 1);
        assert_eq!(parse(many.as_bytes()), Err(UeventError::TooManyFields));
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_begins_with_what_is_read_of_it(
            text in "[a-z]{0,3}@?/?[a-z]{0,3}(\\x00(ACTION|DEVPATH|SUBSYSTEM|A)?=?[a-z@/ ]{0,3}){0,4}",
        ) {
            if let Ok(event) = parse(text.as_bytes()) {
                prop_assert!(is_word(event.action) && event.subsystem.is_none_or(is_word));
                let head = format!("{}@{}", event.action, event.devpath);
                prop_assert_eq!(text.split('\0').next(), Some(head.as_str()));
            }
        }

        #[test]
        fn bytes_that_are_no_text_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assume!(std::str::from_utf8(&bytes).is_err());
            prop_assert_eq!(parse(&bytes), Err(UeventError::NotText));
        }

        #[test]
        fn what_was_written_is_what_is_read(
            action in "[a-z]{1,10}", devpath in "/[a-z0-9/:.]{0,40}", subsystem in "[a-z_]{1,12}",
            more in prop::collection::vec(("[B-C][A-Z]{0,8}", "[ -~]{0,20}"), 0..8)
        ) {
            let mut text = format!("{action}@{devpath}\0");
            for (key, value) in &more {
                text.push_str(&format!("{key}={value}\0"));
            }
            text.push_str(&format!("ACTION={action}\0DEVPATH={devpath}\0SUBSYSTEM={subsystem}\0"));
            let event = parse(text.as_bytes()).unwrap();
            prop_assert_eq!(event.action, action);
            prop_assert_eq!(event.devpath, devpath);
            prop_assert_eq!(event.subsystem, Some(subsystem.as_str()));
        }

        #[test]
        fn a_cut_or_damaged_message_never_names_another_subsystem(
            cut in 0usize..USB.len(), at in 0usize..USB.len(), byte in any::<u8>()
        ) {
            let whole = parse(&USB.as_bytes()[..cut]);
            prop_assert!(whole.is_err() || whole.unwrap().subsystem.is_none_or(|s| "usb".starts_with(s)));
            let mut damaged = USB.as_bytes().to_vec();
            damaged[at] = byte;
            if let Ok(event) = parse(&damaged) {
                prop_assert!(event.subsystem.is_none_or(|name| name.len() == 3 || byte == 0));
            }
        }
    }
}
