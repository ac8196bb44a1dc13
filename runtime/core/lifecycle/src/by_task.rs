//! A map from the names of an allocation's tasks.
//!
//! An allocation has few tasks, nearly always one, and the first entry of a `BTreeMap` makes room for
//! eleven: the ten maps of an allocation took 3 KiB.

use ostler_model::ids::TaskName;

/// One value for each task, in the order of the tasks' names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByTask<T>(Vec<(TaskName, T)>);

impl<T> Default for ByTask<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> ByTask<T> {
    fn find_index(&self, task: &TaskName) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| known.cmp(task))
    }

    /// The value of a task.
    #[must_use]
    pub fn get(&self, task: &TaskName) -> Option<&T> {
        let at = self.find_index(task).ok()?;
        self.0.get(at).map(|(_, of)| of)
    }

    /// As [`ByTask::get`], to change it.
    pub fn get_mut(&mut self, task: &TaskName) -> Option<&mut T> {
        let at = self.find_index(task).ok()?;
        self.0.get_mut(at).map(|(_, of)| of)
    }

    /// Set the value of a task; returns the value that it had before.
    pub fn insert(&mut self, task: TaskName, of: T) -> Option<T> {
        match self.find_index(&task) {
            Ok(at) => self.0.get_mut(at).map(|(_, known)| std::mem::replace(known, of)),
            Err(at) => {
                self.0.reserve_exact(1);
                self.0.insert(at, (task, of));
                None
            }
        }
    }

    /// All tasks with their values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&TaskName, &T)> {
        self.0.iter().map(|(task, of)| (task, of))
    }

    /// All tasks with their values, in order, to change the values.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&TaskName, &mut T)> {
        self.0.iter_mut().map(|(task, of)| (&*task, of))
    }

    /// The names of the tasks, in order.
    pub fn keys(&self) -> impl Iterator<Item = &TaskName> {
        self.0.iter().map(|(task, _)| task)
    }

    /// The values, in the order of the tasks' names.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, of)| of)
    }
}

impl<T> FromIterator<(TaskName, T)> for ByTask<T> {
    fn from_iter<I: IntoIterator<Item = (TaskName, T)>>(all: I) -> Self {
        let mut map = Self::default();
        for (task, of) in all {
            map.insert(task, of);
        }
        map
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn tasks_are_found_by_name_and_stand_in_its_order() {
        let name = |text: &str| TaskName::new(text).unwrap();
        let mut map: ByTask<u32> = [("b", 1), ("a", 2), ("c", 3), ("b", 4)]
            .into_iter()
            .map(|(task, of)| (name(task), of))
            .collect();
        assert_eq!(map.keys().map(TaskName::as_str).collect::<String>(), "abc");
        assert_eq!(map.values().copied().collect::<Vec<_>>(), [2, 4, 3]);
        assert_eq!((map.get(&name("c")), map.get(&name("d"))), (Some(&3), None));
        *map.get_mut(&name("c")).unwrap() += 1;
        assert_eq!((map.insert(name("c"), 5), map.insert(name("0"), 6)), (Some(4), None));
        assert_eq!(map.iter().next(), Some((&name("0"), &6)));
    }
}
