//! What is shown of a [`Look`], and what keys change of that. Pure.

use super::look::{AllocRow, Look};
use crate::args::top::SortBy;

/// What a person is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tab {
    /// Allocations.
    #[default]
    Allocations,
    /// Devices.
    Devices,
    /// Plugins.
    Plugins,
}

impl Tab {
    pub(super) const ALL: [Self; 3] = [Self::Allocations, Self::Devices, Self::Plugins];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Allocations => "allocations",
            Self::Devices => "devices",
            Self::Plugins => "plugins",
        }
    }

    const fn next(self) -> Self {
        match self {
            Self::Allocations => Self::Devices,
            Self::Devices => Self::Plugins,
            Self::Plugins => Self::Allocations,
        }
    }
}

/// A key, as far as it means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Tab,
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    /// Ctrl-C.
    Interrupt,
}

/// What follows from a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// Draw again.
    Draw,
    /// Ask the agent now.
    Look,
    /// End.
    Quit,
}

/// Rows that a page key goes on.
const PAGE: usize = 10;
/// Longest filter, characters.
const FILTER_MAX: usize = 64;

/// What a person chose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chosen {
    pub tab: Tab,
    pub sort: SortBy,
    /// The other way round.
    pub reverse: bool,
    /// Only rows with this text.
    pub filter: String,
    /// Keys go into the filter.
    pub typing: bool,
    /// First row that is shown.
    pub first: usize,
}

impl Chosen {
    /// A key was pressed while there were so many rows.
    pub(super) fn press(&mut self, key: Key, rows: usize) -> Then {
        if key == Key::Interrupt {
            return Then::Quit;
        }
        if self.typing {
            self.type_in(key);
            return Then::Draw;
        }
        let last = rows.saturating_sub(1);
        match key {
            Key::Char('q') | Key::Escape if self.filter.is_empty() => return Then::Quit,
            Key::Char('q') => return Then::Quit,
            Key::Escape => self.filter.clear(),
            Key::Char(' ') => return Then::Look,
            Key::Char('/') => self.typing = true,
            Key::Char('s') => self.sort = self.sort.next(),
            Key::Char('r') => self.reverse = !self.reverse,
            Key::Char('1') => self.show(Tab::Allocations),
            Key::Char('2') => self.show(Tab::Devices),
            Key::Char('3') => self.show(Tab::Plugins),
            Key::Tab => self.show(self.tab.next()),
            Key::Up | Key::Char('k') => self.first = self.first.saturating_sub(1),
            Key::Down | Key::Char('j') => self.first = (self.first + 1).min(last),
            Key::PageUp => self.first = self.first.saturating_sub(PAGE),
            Key::PageDown => self.first = (self.first + PAGE).min(last),
            _ => {}
        }
        Then::Draw
    }

    fn show(&mut self, tab: Tab) {
        (self.tab, self.first) = (tab, 0);
    }

    fn type_in(&mut self, key: Key) {
        match key {
            Key::Enter => self.typing = false,
            Key::Escape => {
                self.typing = false;
                self.filter.clear();
            }
            Key::Backspace => drop(self.filter.pop()),
            Key::Char(c) if !c.is_control() && self.filter.chars().count() < FILTER_MAX => {
                self.filter.push(c);
            }
            _ => {}
        }
        self.first = 0;
    }

    /// What of it is shown, in its order.
    pub(super) fn of(&self, look: &Look) -> Look {
        let has = |texts: &[&str]| {
            let wanted = self.filter.to_lowercase();
            texts.iter().any(|text| text.to_lowercase().contains(&wanted))
        };
        let mut shown = look.clone();
        shown
            .allocations
            .retain(|row| has(&[&row.id, &row.job, &row.group, &row.namespace, &row.status]));
        shown.devices.retain(|row| has(&[&row.group, &row.id, &row.health, &row.holder]));
        shown.plugins.retain(|row| has(&[&row.name, &row.kind, &row.state]));
        self.sort(&mut shown.allocations);
        if self.reverse {
            shown.allocations.reverse();
            shown.devices.reverse();
            shown.plugins.reverse();
        }
        shown
    }

    /// Equal ones stay by name.
    fn sort(&self, rows: &mut [AllocRow]) {
        let most = |value: Option<f64>| value.unwrap_or(-1.0);
        match self.sort {
            SortBy::Cpu => {
                rows.sort_by(|a, b| most(b.cpu_percent).total_cmp(&most(a.cpu_percent)));
            }
            SortBy::Memory => {
                rows.sort_by(|a, b| most(b.memory_bytes).total_cmp(&most(a.memory_bytes)));
            }
            SortBy::Name => rows.sort_by(|a, b| (&a.job, &a.group).cmp(&(&b.job, &b.group))),
            SortBy::Status => rows.sort_by(|a, b| a.status.cmp(&b.status)),
        }
    }

    /// Rows of the list that is shown.
    pub(super) fn rows(&self, look: &Look) -> usize {
        let shown = self.of(look);
        match self.tab {
            Tab::Allocations => shown.allocations.len(),
            Tab::Devices => shown.devices.len(),
            Tab::Plugins => shown.plugins.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(job: &str, cpu: Option<f64>, memory: f64, status: &str) -> AllocRow {
        AllocRow {
            job: job.into(),
            cpu_percent: cpu,
            memory_bytes: Some(memory),
            status: status.into(),
            ..AllocRow::default()
        }
    }

    fn look() -> Look {
        let allocations = vec![
            row("api", Some(5.0), 30.0, "running"),
            row("db", None, 90.0, "pending"),
            row("web", Some(80.0), 10.0, "running"),
        ];
        Look { allocations, ..Look::default() }
    }

    fn jobs(chosen: &Chosen) -> Vec<String> {
        chosen.of(&look()).allocations.into_iter().map(|row| row.job).collect()
    }

    #[test]
    fn s_goes_through_the_orders_and_r_turns_them_round() {
        let mut chosen = Chosen::default();
        assert_eq!(jobs(&chosen), ["web", "api", "db"]);
        let orders = [["db", "api", "web"], ["api", "db", "web"], ["db", "api", "web"]];
        for order in orders {
            chosen.press(Key::Char('s'), 3);
            assert_eq!(jobs(&chosen), order, "{:?}", chosen.sort);
        }
        chosen.press(Key::Char('s'), 3);
        chosen.press(Key::Char('r'), 3);
        assert_eq!(jobs(&chosen), ["db", "api", "web"]);
    }

    #[test]
    fn what_is_typed_behind_a_slash_filters_and_escape_takes_it_away_before_it_ends() {
        let mut chosen = Chosen::default();
        for key in [Key::Char('/'), Key::Char('W'), Key::Char('q'), Key::Backspace, Key::Enter] {
            assert_eq!(chosen.press(key, 3), Then::Draw);
        }
        assert_eq!(jobs(&chosen), ["web"]);
        assert_eq!(chosen.rows(&look()), 1);
        assert_eq!(chosen.press(Key::Escape, 1), Then::Draw);
        assert_eq!(jobs(&chosen).len(), 3);
        assert_eq!(chosen.press(Key::Escape, 3), Then::Quit);
        assert_eq!(chosen.press(Key::Char('q'), 3), Then::Quit);
        chosen.press(Key::Char('/'), 3);
        assert_eq!(chosen.press(Key::Interrupt, 3), Then::Quit, "also while somebody types");
        for _ in 0..1_000 {
            let _drawn = chosen.press(Key::Char('x'), 3);
        }
        assert_eq!(chosen.filter.len(), FILTER_MAX);
    }

    #[test]
    fn the_list_moves_within_its_rows_and_begins_anew_in_another_one() {
        let mut chosen = Chosen::default();
        chosen.press(Key::Up, 3);
        assert_eq!(chosen.first, 0);
        chosen.press(Key::PageDown, 3);
        assert_eq!(chosen.first, 2);
        chosen.press(Key::Tab, 3);
        assert_eq!((chosen.tab, chosen.first), (Tab::Devices, 0));
        chosen.press(Key::Char('3'), 0);
        chosen.press(Key::Down, 0);
        assert_eq!((chosen.tab, chosen.first), (Tab::Plugins, 0), "nothing to move in");
        assert_eq!(chosen.press(Key::Char(' '), 0), Then::Look);
    }
}
