//! A shared value that seldom changes: clones share it, and a change copies it first.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A shared value that is copied when one of its holders changes it. It is serialised as the
/// value itself.
#[derive(Debug, Default, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CowArc<T>(Arc<T>);

impl<T> Clone for CowArc<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: PartialEq> PartialEq for CowArc<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl<T> From<T> for CowArc<T> {
    fn from(value: T) -> Self {
        Self(Arc::new(value))
    }
}

impl<T> Deref for CowArc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for CowArc<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_seen_by_whoever_made_it_alone() {
        let mut mine = CowArc::from(vec![1]);
        let theirs = mine.clone();
        mine.push(2);
        assert_eq!((mine.as_slice(), theirs.as_slice()), (&[1, 2][..], &[1][..]));
        assert_ne!(mine, theirs);
        assert_eq!(theirs, CowArc::from(vec![1]));
    }
}
