//! Sets of processor cores, by the numbers that the kernel gives them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Numbers below this one are cores: the largest kernels are built for 8,192.
const CORE_NUMBERS: u32 = 8_192;

/// Cores of this node, as the kernel numbers them. Its text is the kernel's list: `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CoreSet(BTreeSet<u32>);

/// The text is no list of cores.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a list of cores such as 0-3,8")]
pub struct CoreSetError(String);

impl CoreSet {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self(BTreeSet::new())
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of cores in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Numbers of the cores, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// The cores that are in at least one of both sets.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(&self.0 | &other.0)
    }

    /// The cores that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(&self.0 & &other.0)
    }

    /// The cores of this set that are not in `other`.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self(&self.0 - &other.0)
    }

    /// Whether all cores of `other` are in this set.
    #[must_use]
    pub fn contains_all(&self, other: &Self) -> bool {
        self.0.is_superset(&other.0)
    }

    /// The first `count` cores; `None` when there are fewer.
    #[must_use]
    pub fn first(&self, count: usize) -> Option<Self> {
        (count <= self.len()).then(|| self.iter().take(count).collect())
    }
}

impl FromIterator<u32> for CoreSet {
    fn from_iter<T: IntoIterator<Item = u32>>(cores: T) -> Self {
        Self(cores.into_iter().collect())
    }
}

impl FromStr for CoreSet {
    type Err = CoreSetError;

    fn from_str(text: &str) -> Result<Self, CoreSetError> {
        let wrong = || CoreSetError(text.chars().take(64).collect());
        let number = |part: &str| {
            let number = part.trim().parse::<u32>().ok();
            number.filter(|number| *number < CORE_NUMBERS).ok_or_else(wrong)
        };
        let mut cores = BTreeSet::new();
        if text.trim().is_empty() {
            return Ok(Self(cores));
        }
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if last < first {
                return Err(wrong());
            }
            cores.extend(first..=last);
        }
        Ok(Self(cores))
    }
}

impl fmt::Display for CoreSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cores = self.iter().peekable();
        let mut comma = "";
        while let Some(first) = cores.next() {
            let mut last = first;
            while let Some(next) = cores.next_if(|next| *next == last + 1) {
                last = next;
            }
            if last == first {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

impl TryFrom<String> for CoreSet {
    type Error = CoreSetError;

    fn try_from(text: String) -> Result<Self, CoreSetError> {
        text.parse()
    }
}

impl From<CoreSet> for String {
    fn from(cores: CoreSet) -> Self {
        cores.to_string()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn cores(text: &str) -> CoreSet {
        text.parse().unwrap()
    }

    #[test]
    fn lists_of_the_kernel_are_read_and_written_in_their_shortest_form() {
        for (read, written) in [
            ("0-3,8\n", "0-3,8"),
            ("", ""),
            ("\n", ""),
            ("3,1,2,1", "1-3"),
            ("5", "5"),
            ("0,2", "0,2"),
        ] {
            assert_eq!(cores(read).to_string(), written);
        }
        for wrong in ["a", "3-1", "0-", "-", "8192", "0-4294967295", "0x1", "0,,1"] {
            let error = wrong.parse::<CoreSet>().unwrap_err().to_string();
            assert!(error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn sets_are_joined_parted_and_taken_from() {
        let (few, many) = (cores("1-2"), cores("0-3,8"));
        assert_eq!(many.without(&few), cores("0,3,8"));
        assert_eq!(few.union(&cores("7")), cores("1-2,7"));
        assert_eq!(many.intersection(&cores("2-9")), cores("2-3,8"));
        assert!(many.contains_all(&few) && !few.contains_all(&many));
        assert_eq!(many.first(4), Some(cores("0-3")));
        assert_eq!(few.first(3), None);
        let json = serde_json::to_string(&many).unwrap();
        assert_eq!(json, r#""0-3,8""#);
        assert_eq!(serde_json::from_str::<CoreSet>(&json).unwrap(), many);
    }
}
