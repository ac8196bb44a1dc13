//! Rows under a header, within the width of a terminal.
//!
//! ```text
//! all fit side by side ──────────────────────────► one line a row
//! their longest words do ────────────────────────► cells of several lines, broken between words
//! else the last columns go, until the rest fits ──► lines of their own below each row
//! ```
//! The columns that name and sort the rows come first, details last. A column that is wider than
//! half of the screen goes below before the last ones do. A column that is empty in every row is
//! not shown on a terminal.
//! No word and no heading is ever broken: names, ids and paths are copied from the screen.

use unicode_width::UnicodeWidthStr as _;

use super::output::headline;
use super::terminal::{TerminalInfo, one_line};

/// Blanks between two columns.
const GAP: usize = 2;
/// Blanks before a line below a row.
const INDENT: usize = 4;

/// Rows under a header. On a terminal they fit its width; elsewhere each row is one line, so that
/// other programs can read it.
pub(super) fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
    terminal: &TerminalInfo,
) -> String {
    let rows: Vec<[String; N]> =
        rows.into_iter().map(|row| row.map(|cell| one_line(&cell))).collect();
    let columns: Vec<Column> = (0..N).map(|index| Column::new(index, &header, &rows)).collect();
    let layout = Layout::new(columns, terminal.width());
    let mut text = String::new();
    let heads = layout.line(|index| header.get(index).copied().unwrap_or_default());
    text.push_str(&headline(&heads, terminal));
    text.push('\n');
    for row in &rows {
        layout.write_row(row, &header, &mut text);
    }
    text
}

/// The widths of a column.
#[derive(Clone, Copy, Debug)]
struct Column {
    index: usize,
    /// The width that all its cells need.
    natural: usize,
    /// The width that its longest word and its heading need.
    least: usize,
    /// The width in which the column is shown.
    width: usize,
    /// Whether there are rows and all their cells in this column are empty.
    empty: bool,
}

impl Column {
    fn new<const N: usize>(index: usize, header: &[&str; N], rows: &[[String; N]]) -> Self {
        let head = header.get(index).map_or(0, |head| head.width());
        let cells = || rows.iter().filter_map(|row| row.get(index));
        let natural = cells().map(|cell| cell.width()).fold(head, usize::max);
        let words = cells().map(|cell| longest_word(cell));
        let empty = !rows.is_empty() && cells().all(|cell| cell.is_empty());
        Self { index, natural, least: words.fold(head, usize::max), width: natural, empty }
    }
}

/// Which columns are side by side, and which are below each row.
struct Layout {
    beside: Vec<Column>,
    below: Vec<usize>,
    /// The width of the terminal; `None` where every row is one line.
    screen: Option<usize>,
}

impl Layout {
    fn new(columns: Vec<Column>, screen: Option<usize>) -> Self {
        let mut layout = Self { beside: columns, below: Vec::new(), screen };
        let Some(screen) = screen else { return layout };
        layout.beside.retain(|column| !column.empty);
        if layout.sum(|column| column.natural) <= screen {
            return layout;
        }
        while layout.sum(|column| column.least) > screen {
            // The first column names the row.
            let rest = || layout.beside.iter().enumerate().skip(1);
            let wide = rest().filter(|(_, column)| column.least > screen / 2);
            let widest = wide.max_by_key(|(_, column)| column.least);
            let Some((at, _)) = widest.or_else(|| rest().last()) else { break };
            layout.below.push(layout.beside.remove(at).index);
        }
        layout.below.sort_unstable();
        layout.widen(screen);
        layout
    }

    /// Width of all columns side by side, each with the width that `width` returns.
    fn sum(&self, width: impl Fn(&Column) -> usize) -> usize {
        let gaps = GAP * self.beside.len().saturating_sub(1);
        self.beside.iter().map(width).sum::<usize>() + gaps
    }

    /// Give each column its least width, and share the rest among those that need more: the
    /// narrowest first, so that only long texts are broken.
    fn widen(&mut self, screen: usize) {
        let mut left = screen.saturating_sub(self.sum(|column| column.least));
        let mut order: Vec<&mut Column> = self.beside.iter_mut().collect();
        order.sort_by_key(|column| column.natural - column.least);
        let mut waiting = order.len();
        for column in order {
            let share = left / waiting.max(1);
            let more = (column.natural - column.least).min(share);
            column.width = column.least + more;
            left -= more;
            waiting -= 1;
        }
    }

    /// One line of the columns that are side by side.
    fn line<'a>(&self, cell: impl Fn(usize) -> &'a str) -> String {
        let mut line = String::new();
        for column in &self.beside {
            let text = cell(column.index);
            let blanks = column.width.saturating_sub(text.width()) + GAP;
            line.push_str(text);
            line.extend(std::iter::repeat_n(' ', blanks));
        }
        line.trim_end().to_owned()
    }

    fn write_row<const N: usize>(&self, row: &[String; N], header: &[&str; N], text: &mut String) {
        let cell = |index: usize| row.get(index).map(String::as_str).unwrap_or_default();
        let cells: Vec<Vec<&str>> = self
            .beside
            .iter()
            .map(|column| match self.screen {
                Some(screen) => wrap_words(cell(column.index), column.width.min(screen)),
                None => vec![cell(column.index)],
            })
            .collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(0).max(1);
        for at in 0..height {
            let line = self.line(|index| {
                let place = self.beside.iter().position(|column| column.index == index);
                let lines = place.and_then(|place| cells.get(place));
                lines.and_then(|lines| lines.get(at)).copied().unwrap_or_default()
            });
            text.push_str(&line);
            text.push('\n');
        }
        let labels = self.below.iter().filter_map(|index| header.get(*index));
        let label = labels.map(|head| head.width()).max().unwrap_or(0);
        for index in self.below.iter().filter(|index| !cell(**index).is_empty()) {
            let head = header.get(*index).copied().unwrap_or_default();
            self.write_below(head, label, cell(*index), text);
        }
    }

    /// Append a cell below its row, after its heading.
    fn write_below(&self, head: &str, label: usize, cell: &str, text: &mut String) {
        let before = INDENT + label + if label == 0 { 0 } else { GAP };
        let room = self.screen.unwrap_or(usize::MAX).saturating_sub(before).max(1);
        for (at, line) in wrap_words(cell, room).into_iter().enumerate() {
            let head = if at == 0 { head } else { "" };
            let blanks = before.saturating_sub(INDENT + head.width());
            let line = format!("{:INDENT$}{head}{:blanks$}{line}", "", "");
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
}

/// The positions where a text may be broken: at blanks, except between a number and what it counts.
fn break_positions(text: &str) -> impl Iterator<Item = usize> {
    let number = |word: &str| !word.is_empty() && word.chars().all(|c| "0123456789.".contains(c));
    let mut begin = 0;
    text.match_indices(' ').filter_map(move |(at, _)| {
        let word = text.get(begin..at).unwrap_or_default();
        begin = at + 1;
        (!number(word)).then_some(at)
    })
}

fn longest_word(text: &str) -> usize {
    let mut begin = 0;
    let mut longest = 0;
    for end in break_positions(text).chain([text.len()]) {
        longest = longest.max(text.get(begin..end).map_or(0, |word| word.trim().width()));
        begin = end;
    }
    longest
}

/// Break a text between words into lines of at most `width`. A longer word gets a line of its own.
fn wrap_words(text: &str, width: usize) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text.trim_end();
    while rest.width() > width {
        let mut end = None;
        for at in break_positions(rest) {
            let fits = rest.get(..at).is_some_and(|line| line.width() <= width);
            if !fits && end.is_some() {
                break;
            }
            end = Some(at);
            if !fits {
                break;
            }
        }
        let Some(end) = end.filter(|end| *end > 0) else { break };
        lines.push(rest.get(..end).unwrap_or_default().trim_end());
        rest = rest.get(end..).unwrap_or_default().trim_start();
    }
    lines.push(rest);
    lines
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
