//! Groups that the contract takes, made of what hardware says.

use ostler_sdk::types::NamedAttribute;

/// Longest name or id that the agent takes, bytes.
const NAME_BYTES_MAX: usize = 256;
/// Most instances of a group that the agent takes.
pub const INSTANCES_MAX: usize = 4096;

/// The attributes that all have, with the value that all have: a group says only what holds for
/// each of its instances.
pub fn shared(each: impl IntoIterator<Item = Vec<NamedAttribute>>) -> Vec<NamedAttribute> {
    let mut each = each.into_iter();
    let mut shared = each.next().unwrap_or_default();
    for other in each {
        shared.retain(|attribute| other.contains(attribute));
    }
    shared
}

/// A name out of what a device says of itself: no control characters, at most 256 bytes, no space
/// around it. `None` when nothing is left. A device must not void the whole answer with its name.
pub fn name(text: &str) -> Option<String> {
    let clean: String = text
        .chars()
        .filter(|c| !c.is_control() && *c != char::REPLACEMENT_CHARACTER)
        .scan(0, |bytes, c| {
            *bytes += c.len_utf8();
            (*bytes <= NAME_BYTES_MAX).then_some(c)
        })
        .collect();
    let clean = clean.trim();
    (!clean.is_empty()).then(|| clean.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_says_only_what_all_its_instances_have_in_common() {
        let one = |driver: &str| {
            vec![NamedAttribute::new("class", "03"), NamedAttribute::new("driver", driver)]
        };
        assert_eq!(shared([one("a"), one("a")]), one("a"));
        assert_eq!(shared([one("a"), one("b")]), [NamedAttribute::new("class", "03")]);
        assert_eq!(shared([]), []);
    }

    #[test]
    fn a_name_is_made_fit_or_is_none() {
        assert_eq!(name(" A\u{1b}[2J\tB\u{fffd} ").as_deref(), Some("A[2JB"));
        assert_eq!(name(&"ä".repeat(200)).map(|name| name.len()), Some(256));
        assert_eq!(name("\0\n \u{fffd}"), None);
    }
}
