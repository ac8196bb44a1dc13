//! Finds the trial allocations that a text names. A job may have thousands of them, and as many
//! texts that may name one.

use std::collections::{BTreeMap, BTreeSet};

use super::looks;
use super::refusal::Attempt;

/// Number of letters of an id that people see, as in [`ostler_model::ids::AllocId::short`].
const SHORT: usize = 8;

/// Trial allocations, found by their short ids. See the module.
pub(crate) struct AttemptNames<'a> {
    all: &'a [Attempt],
    /// Positions in `all`, by short id. Two ids may have the same short form.
    by_short: BTreeMap<String, Vec<usize>>,
}

impl<'a> AttemptNames<'a> {
    /// An index of these trial allocations.
    pub(crate) fn new(all: &'a [Attempt]) -> Self {
        looks::note(all.len());
        let mut by_short: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (at, attempt) in all.iter().enumerate() {
            by_short.entry(attempt.id.short()).or_default().push(at);
        }
        Self { all, by_short }
    }

    /// The trial allocations that a text names, in their order.
    pub(crate) fn find_named(&self, text: &str) -> Vec<&'a Attempt> {
        if self.all.is_empty() {
            return Vec::new();
        }
        let of_id = |letter: &u8| matches!(letter, b'0'..=b'9' | b'a'..=b'f');
        let words = text.as_bytes().windows(SHORT).filter(|word| word.iter().all(of_id));
        let words = words.filter_map(|word| str::from_utf8(word).ok());
        let named: BTreeSet<usize> =
            words.filter_map(|word| self.by_short.get(word)).flatten().copied().collect();
        looks::note(named.len());
        named.into_iter().filter_map(|at| self.all.get(at)).collect()
    }

    /// Replace the ids of trial allocations in a text by their names.
    pub(crate) fn replace_ids(&self, mut text: String) -> String {
        for Attempt { id, name } in self.find_named(&text) {
            text =
                text.replace(&format!("allocation {}", id.short()), &format!("{name} of this job"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use super::*;
    use ostler_model::ids::AllocId;

    fn attempt(id: u128, name: &str) -> Attempt {
        Attempt { id: AllocId::new(uuid::Uuid::from_u128(id << 96)), name: name.to_owned() }
    }

    #[test]
    fn those_that_a_text_names_are_found_in_their_order_and_no_others() {
        let all = [attempt(0xaaaa_0002, "j.g[0]"), attempt(1, "j.g[1]"), attempt(0xbbbb, "j.g[2]")];
        let tried = AttemptNames::new(&all);
        let named = |text: &str| {
            tried.find_named(text).into_iter().map(|one| one.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(
            named("held by allocation 00000001 and aaaa0002, aaaa0002"),
            ["j.g[0]", "j.g[1]"]
        );
        assert_eq!(named("é0000bbbbé"), ["j.g[2]"], "between letters of several bytes");
        assert_eq!(named("0000bbb 0000000"), Vec::<String>::new());
        assert_eq!(named("f0000bbbb"), ["j.g[2]"], "wherever it stands");
        let text = "port 1 is held by allocation 00000001; 0000bbbb is not called an allocation";
        assert_eq!(
            tried.replace_ids(text.to_owned()),
            "port 1 is held by j.g[1] of this job; 0000bbbb is not called an allocation"
        );
        assert_eq!(AttemptNames::new(&[]).replace_ids(text.to_owned()), text);
    }

    #[test]
    fn two_that_look_the_same_are_both_found() {
        let mut all = [attempt(7, "j.g[0]"), attempt(7, "j.g[1]")];
        all[1].id = AllocId::new(uuid::Uuid::from_u128((7 << 96) + 1));
        assert_eq!(AttemptNames::new(&all).find_named("allocation 00000007").len(), 2);
    }
}
