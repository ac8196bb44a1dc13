//! Which part of a [`TopSnapshot`] is shown, and how keys change that. Pure.

use super::snapshot::{AllocRow, TopSnapshot};
use crate::args::top::SortBy;

/// The list that is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tab {
    /// The list of the allocations.
    #[default]
    Allocations,
    /// The list of the devices.
    Devices,
    /// The list of the plugins.
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

/// A key that has a meaning here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TopKey {
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

/// The effect of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyEffect {
    /// Draw the screen again.
    Draw,
    /// Ask the agent for a new snapshot now.
    Refresh,
    /// End the program.
    Quit,
}

/// Number of rows that a page key moves.
const PAGE: usize = 10;
/// Longest filter, characters.
const FILTER_MAX: usize = 64;

/// What the user has chosen to see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ViewState {
    pub tab: Tab,
    pub sort: SortBy,
    /// Whether the order is reversed.
    pub reverse: bool,
    /// Only rows that contain this text are shown.
    pub filter: String,
    /// Whether keys go into the filter.
    pub typing: bool,
    /// The index of the first row that is shown.
    pub first: usize,
}

impl ViewState {
    /// Handle a key, while the list has this number of rows.
    pub(super) fn press(&mut self, key: TopKey, rows: usize) -> KeyEffect {
        if key == TopKey::Interrupt {
            return KeyEffect::Quit;
        }
        if self.typing {
            self.type_in(key);
            return KeyEffect::Draw;
        }
        let last = rows.saturating_sub(1);
        match key {
            TopKey::Char('q') | TopKey::Escape if self.filter.is_empty() => return KeyEffect::Quit,
            TopKey::Char('q') => return KeyEffect::Quit,
            TopKey::Escape => self.filter.clear(),
            TopKey::Char(' ') => return KeyEffect::Refresh,
            TopKey::Char('/') => self.typing = true,
            TopKey::Char('s') => self.sort = self.sort.next(),
            TopKey::Char('r') => self.reverse = !self.reverse,
            TopKey::Char('1') => self.show(Tab::Allocations),
            TopKey::Char('2') => self.show(Tab::Devices),
            TopKey::Char('3') => self.show(Tab::Plugins),
            TopKey::Tab => self.show(self.tab.next()),
            TopKey::Up | TopKey::Char('k') => self.first = self.first.saturating_sub(1),
            TopKey::Down | TopKey::Char('j') => self.first = (self.first + 1).min(last),
            TopKey::PageUp => self.first = self.first.saturating_sub(PAGE),
            TopKey::PageDown => self.first = (self.first + PAGE).min(last),
            _ => {}
        }
        KeyEffect::Draw
    }

    fn show(&mut self, tab: Tab) {
        (self.tab, self.first) = (tab, 0);
    }

    fn type_in(&mut self, key: TopKey) {
        match key {
            TopKey::Enter => self.typing = false,
            TopKey::Escape => {
                self.typing = false;
                self.filter.clear();
            }
            TopKey::Backspace => drop(self.filter.pop()),
            TopKey::Char(c) if !c.is_control() && self.filter.chars().count() < FILTER_MAX => {
                self.filter.push(c);
            }
            _ => {}
        }
        self.first = 0;
    }

    /// The rows of a snapshot that pass the filter, sorted.
    pub(super) fn filter_snapshot(&self, look: &TopSnapshot) -> TopSnapshot {
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

    /// Sort the rows. Equal rows keep their order, which is by name.
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

    /// The number of rows in the list that is shown.
    pub(super) fn row_count(&self, look: &TopSnapshot) -> usize {
        let shown = self.filter_snapshot(look);
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

    fn sample_snapshot() -> TopSnapshot {
        let allocations = vec![
            row("api", Some(5.0), 30.0, "running"),
            row("db", None, 90.0, "pending"),
            row("web", Some(80.0), 10.0, "running"),
        ];
        TopSnapshot { allocations, ..TopSnapshot::default() }
    }

    fn jobs(chosen: &ViewState) -> Vec<String> {
        chosen
            .filter_snapshot(&sample_snapshot())
            .allocations
            .into_iter()
            .map(|row| row.job)
            .collect()
    }

    #[test]
    fn s_goes_through_the_orders_and_r_turns_them_round() {
        let mut chosen = ViewState::default();
        assert_eq!(jobs(&chosen), ["web", "api", "db"]);
        let orders = [["db", "api", "web"], ["api", "db", "web"], ["db", "api", "web"]];
        for order in orders {
            chosen.press(TopKey::Char('s'), 3);
            assert_eq!(jobs(&chosen), order, "{:?}", chosen.sort);
        }
        chosen.press(TopKey::Char('s'), 3);
        chosen.press(TopKey::Char('r'), 3);
        assert_eq!(jobs(&chosen), ["db", "api", "web"]);
    }

    #[test]
    fn what_is_typed_behind_a_slash_filters_and_escape_takes_it_away_before_it_ends() {
        let mut chosen = ViewState::default();
        for key in [
            TopKey::Char('/'),
            TopKey::Char('W'),
            TopKey::Char('q'),
            TopKey::Backspace,
            TopKey::Enter,
        ] {
            assert_eq!(chosen.press(key, 3), KeyEffect::Draw);
        }
        assert_eq!(jobs(&chosen), ["web"]);
        assert_eq!(chosen.row_count(&sample_snapshot()), 1);
        assert_eq!(chosen.press(TopKey::Escape, 1), KeyEffect::Draw);
        assert_eq!(jobs(&chosen).len(), 3);
        assert_eq!(chosen.press(TopKey::Escape, 3), KeyEffect::Quit);
        assert_eq!(chosen.press(TopKey::Char('q'), 3), KeyEffect::Quit);
        chosen.press(TopKey::Char('/'), 3);
        assert_eq!(
            chosen.press(TopKey::Interrupt, 3),
            KeyEffect::Quit,
            "also while somebody types"
        );
        for _ in 0..1_000 {
            let _drawn = chosen.press(TopKey::Char('x'), 3);
        }
        assert_eq!(chosen.filter.len(), FILTER_MAX);
    }

    #[test]
    fn the_list_moves_within_its_rows_and_begins_anew_in_another_one() {
        let mut chosen = ViewState::default();
        chosen.press(TopKey::Up, 3);
        assert_eq!(chosen.first, 0);
        chosen.press(TopKey::PageDown, 3);
        assert_eq!(chosen.first, 2);
        chosen.press(TopKey::Tab, 3);
        assert_eq!((chosen.tab, chosen.first), (Tab::Devices, 0));
        chosen.press(TopKey::Char('3'), 0);
        chosen.press(TopKey::Down, 0);
        assert_eq!((chosen.tab, chosen.first), (Tab::Plugins, 0), "nothing to move in");
        assert_eq!(chosen.press(TopKey::Char(' '), 0), KeyEffect::Refresh);
    }
}
