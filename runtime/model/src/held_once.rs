//! A value that several hold and that seldom changes: held once, copied by whoever changes it.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// See the module. Written as the value itself.
#[derive(Debug, Default, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HeldOnce<T>(Arc<T>);

impl<T> Clone for HeldOnce<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: PartialEq> PartialEq for HeldOnce<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl<T> From<T> for HeldOnce<T> {
    fn from(value: T) -> Self {
        Self(Arc::new(value))
    }
}

impl<T> Deref for HeldOnce<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for HeldOnce<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_seen_by_whoever_made_it_alone() {
        let mut mine = HeldOnce::from(vec![1]);
        let theirs = mine.clone();
        mine.push(2);
        assert_eq!((mine.as_slice(), theirs.as_slice()), (&[1, 2][..], &[1][..]));
        assert_ne!(mine, theirs);
        assert_eq!(theirs, HeldOnce::from(vec![1]));
    }
}
