//! How a [`TopSnapshot`] is drawn. Pure but for the frame.
//!
//! The smallest terminal has [`COLUMNS_MIN`] columns and [`ROWS_MIN`] rows. In less than [`WIDE`]
//! columns the head says less, and the least important columns of a list are left out. In less room
//! than the smallest, a message says how much is needed.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table, Wrap};

use super::snapshot::{AllocRow, DeviceRow, NodeUse, PluginRow, TopSnapshot};
use super::state::{Tab, ViewState};
use crate::output::short_id;
use crate::terminal::one_line;
use ostler_model::words::{format_bytes, format_seconds};

/// Columns of the narrowest terminal in which the lists are drawn.
const COLUMNS_MIN: u16 = 40;
/// Rows of the lowest terminal in which the lists are drawn.
const ROWS_MIN: u16 = 8;
/// Columns from which the head shows everything.
const WIDE: u16 = 72;
/// The text of the foot where there is little room.
const KEYS_NARROW: &str = "q quit  tab list  s sort  / filter";
/// The text of the foot.
const KEYS: &str = "q quit  tab/1-3 list  s sort  r reverse  / filter  ↑↓ move  space now";
/// Columns of a bar.
const BAR: usize = 20;

/// Everything that is drawn.
pub(super) struct ScreenContent<'a> {
    pub look: &'a TopSnapshot,
    pub chosen: &'a ViewState,
    /// Why the snapshot is not new; `None` when it is.
    pub trouble: Option<&'a str>,
    pub colours: bool,
}

/// Draw the screen.
pub(super) fn draw(frame: &mut Frame<'_>, shown: &ScreenContent<'_>) {
    let Rect { width, height, .. } = frame.area();
    if width < COLUMNS_MIN || height < ROWS_MIN {
        let text = format!(
            "ostler top needs {COLUMNS_MIN} columns and {ROWS_MIN} rows; there are {width} and {height}. q quit"
        );
        return frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), frame.area());
    }
    let wide = width >= WIDE;
    let rows =
        [Constraint::Length(3), Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)];
    let [head, tabs, list, foot] = Layout::vertical(rows).areas(frame.area());
    frame.render_widget(Paragraph::new(header(shown, wide)), head);
    frame.render_widget(Paragraph::new(tab_line(shown, wide)), tabs);
    let look = shown.chosen.filter_snapshot(shown.look);
    match shown.chosen.tab {
        Tab::Allocations => {
            table(frame, list, shown, &ALLOCATIONS, look.allocations.iter().map(alloc))
        }
        Tab::Devices => table(frame, list, shown, &DEVICES, look.devices.iter().map(device)),
        Tab::Plugins => table(frame, list, shown, &PLUGINS, look.plugins.iter().map(plugin)),
    }
    frame.render_widget(Paragraph::new(footer(shown, wide)), foot);
}

/// A column of a list.
struct ListColumn {
    title: &'static str,
    /// The least width of the column.
    least: u16,
    /// Whether the column takes room that is left.
    grows: bool,
    /// Where there is no room for all columns, the highest number goes first; a column
    /// with 0 stays.
    goes: u8,
}

const fn column(title: &'static str, least: u16, grows: bool, goes: u8) -> ListColumn {
    ListColumn { title, least, grows, goes }
}

const ALLOCATIONS: [ListColumn; 7] = [
    column("ALLOC", 8, false, 0),
    column("JOB", 12, true, 0),
    column("GROUP", 6, true, 2),
    column("STATUS", 9, false, 0),
    column("CPU", 8, false, 0),
    column("MEMORY", 10, false, 1),
    column("OF", 10, false, 3),
];
const DEVICES: [ListColumn; 5] = [
    column("GROUP", 14, true, 1),
    column("DEVICE", 10, true, 0),
    column("HEALTH", 9, true, 0),
    column("HELD BY", 10, true, 0),
    column("MEASURED", 14, false, 2),
];
const PLUGINS: [ListColumn; 7] = [
    column("PLUGIN", 11, true, 0),
    column("KIND", 7, false, 1),
    column("VERSION", 9, false, 4),
    column("STATE", 11, false, 0),
    column("STRIKES", 8, false, 0),
    column("CALLS", 10, false, 3),
    column("P99", 10, false, 2),
];

/// The indices of the columns for which there is room.
fn fitting_columns(columns: &[ListColumn], width: u16) -> Vec<usize> {
    let mut kept: Vec<(usize, &ListColumn)> = columns.iter().enumerate().collect();
    let needs = |kept: &[(usize, &ListColumn)]| {
        let gaps = kept.len().saturating_sub(1);
        kept.iter().map(|(_, column)| usize::from(column.least)).sum::<usize>() + gaps
    };
    while needs(&kept) > usize::from(width) {
        let first = kept.iter().enumerate().max_by_key(|(_, (_, column))| column.goes);
        let Some((at, (_, ListColumn { goes: 1.., .. }))) = first else { break };
        kept.remove(at);
    }
    kept.into_iter().map(|(number, _)| number).collect()
}

fn header(shown: &ScreenContent<'_>, wide: bool) -> Vec<Line<'static>> {
    let node = &shown.look.node;
    let up = format_seconds(node.up_seconds.max(0.0) as u64);
    let first = match shown.trouble {
        None => Line::from(format!("{}  up {up}", one_line(&node.name))),
        Some(why) => Line::from(Span::styled(one_line(why), colour(shown, Color::Red))),
    };
    if wide {
        return vec![first, Line::from(cpu(node)), Line::from(memory(node))];
    }
    let used = cpu_used(node);
    let cpu = format!("cpu    {used} of {} cores", node.cores);
    let memory = format!("memory {} of {}", bytes(node.memory_used), bytes(node.memory_total));
    vec![first, Line::from(cpu), Line::from(memory)]
}

fn cpu_used(node: &NodeUse) -> String {
    node.cpu_percent.map_or("–".to_owned(), |percent| format!("{percent:.0} %"))
}

fn cpu(node: &NodeUse) -> String {
    let share = node.cpu_percent.unwrap_or(0.0) / 100.0;
    let used = cpu_used(node);
    format!(
        "cpu    {} {used:>6} of {} cores, {:.0} of {:.0} MHz assigned",
        bar(share),
        node.cores,
        node.cpu_assigned,
        node.cpu_total
    )
}

fn memory(node: &NodeUse) -> String {
    let share = if node.memory_total > 0.0 { node.memory_used / node.memory_total } else { 0.0 };
    format!(
        "memory {} {:>6} of {}, {:.0} of {:.0} MiB assigned",
        bar(share),
        bytes(node.memory_used),
        bytes(node.memory_total),
        node.memory_assigned,
        node.memory_assignable
    )
}

/// A share between 0 and 1 as a bar.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a bar of few columns"
)]
pub(super) fn bar(share: f64) -> String {
    let full = (share.clamp(0.0, 1.0) * BAR as f64).round() as usize;
    format!("[{}{}]", "|".repeat(full), " ".repeat(BAR.saturating_sub(full)))
}

/// A number of bytes, for people.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes of a machine")]
pub(super) fn bytes(count: f64) -> String {
    format_bytes(count.max(0.0) as u64)
}

/// The line with the names of the lists; the one that is shown is marked.
fn tab_line(shown: &ScreenContent<'_>, wide: bool) -> Line<'static> {
    let look = shown.look;
    let counts = [look.allocations.len(), look.devices.len(), look.plugins.len()];
    let tab = |(number, (tab, count)): (usize, (Tab, usize))| {
        let chosen = tab == shown.chosen.tab;
        let style =
            if chosen { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        let text = if wide || chosen {
            format!("{} {} ({count})", number + 1, tab.name())
        } else {
            format!("{} {}", number + 1, tab.name())
        };
        [Span::styled(text, style), Span::raw(if wide { "  " } else { " " })]
    };
    Tab::ALL.into_iter().zip(counts).enumerate().flat_map(tab).collect::<Vec<_>>().into()
}

fn footer(shown: &ScreenContent<'_>, wide: bool) -> Line<'static> {
    let chosen = shown.chosen;
    let turned = if chosen.reverse { ", reversed" } else { "" };
    match (chosen.typing, chosen.filter.is_empty()) {
        (true, _) => Line::from(format!("filter: {}_  (enter: keep, esc: none)", chosen.filter)),
        (false, false) => Line::from(format!(
            "filter: {}  (esc: none)  sort: {}{turned}  q quit",
            chosen.filter,
            chosen.sort.name()
        )),
        (false, true) if !wide => Line::from(KEYS_NARROW),
        (false, true) => Line::from(format!("{KEYS}  sort: {}{turned}", chosen.sort.name())),
    }
}

fn table<const N: usize>(
    frame: &mut Frame<'_>,
    area: Rect,
    shown: &ScreenContent<'_>,
    columns: &[ListColumn; N],
    rows: impl Iterator<Item = [String; N]>,
) {
    let kept = fitting_columns(columns, area.width);
    let of = |cells: &[String; N]| {
        let kept = kept.iter().filter_map(|number| cells.get(*number));
        Row::new(kept.map(|cell| one_line(cell)).collect::<Vec<_>>())
    };
    let rows: Vec<_> = rows.skip(shown.chosen.first).map(|cells| of(&cells)).collect();
    if rows.is_empty() {
        let text = if shown.chosen.filter.is_empty() {
            format!("no {}", shown.chosen.tab.name())
        } else {
            format!("no {} with this text", shown.chosen.tab.name())
        };
        return frame.render_widget(Paragraph::new(text), area);
    }
    let columns = || kept.iter().filter_map(|number| columns.get(*number));
    let widths = columns().map(|column| {
        if column.grows { Constraint::Min(column.least) } else { Constraint::Length(column.least) }
    });
    let widths: Vec<_> = widths.collect();
    let titles = columns().map(|column| column.title);
    let head = Row::new(titles).style(Style::new().add_modifier(Modifier::BOLD));
    frame.render_widget(Table::new(rows, widths).header(head), area);
}

/// The cells of an allocation.
pub(super) fn alloc(row: &AllocRow) -> [String; 7] {
    let percent = row.cpu_percent.map_or("–".to_owned(), |percent| format!("{percent:.1} %"));
    let job = match row.namespace.as_str() {
        "" | "default" => row.job.clone(),
        namespace => format!("{}@{namespace}", row.job),
    };
    [
        short_id(&row.id),
        job,
        row.group.clone(),
        row.status.clone(),
        percent,
        row.memory_bytes.map_or("–".to_owned(), bytes),
        if row.memory_assigned > 0.0 { bytes(row.memory_assigned) } else { String::new() },
    ]
}

/// The cells of a device.
pub(super) fn device(row: &DeviceRow) -> [String; 5] {
    let row = row.clone();
    [row.group, row.id, row.health, row.holder, row.measured]
}

/// The cells of a plugin.
pub(super) fn plugin(row: &PluginRow) -> [String; 7] {
    let p99 = if row.calls > 0 { format!("{:.1} ms", row.p99_ms) } else { String::new() };
    let row = row.clone();
    [row.name, row.kind, row.version, row.state, row.strikes, row.calls.to_string(), p99]
}

fn colour(shown: &ScreenContent<'_>, colour: Color) -> Style {
    if shown.colours { Style::new().fg(colour) } else { Style::new() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::top::state::TopKey;

    fn sample_snapshot() -> TopSnapshot {
        let allocations = (0..30).map(|number| AllocRow {
            id: format!("{number:08x}-0000"),
            job: format!("job{number}"),
            namespace: "default".into(),
            group: "web".into(),
            status: "running".into(),
            cpu_percent: Some(f64::from(number)),
            memory_bytes: Some(f64::from(1 << 20)),
            memory_assigned: f64::from(64 << 20),
        });
        let devices = vec![DeviceRow {
            group: "acme/fan/x1".into(),
            id: "fan0".into(),
            health: "healthy".into(),
            holder: "web t".into(),
            measured: "45 C".into(),
        }];
        let plugins = vec![PluginRow {
            name: "exec".into(),
            kind: "driver".into(),
            state: "running".into(),
            strikes: "0 of 5".into(),
            calls: 12,
            p99_ms: 1.25,
            ..PluginRow::default()
        }];
        let node = NodeUse {
            name: "edge-7".into(),
            up_seconds: 60.0,
            cpu_percent: Some(50.0),
            cores: 2,
            ..NodeUse::default()
        };
        TopSnapshot { node, allocations: allocations.collect(), devices, plugins }
    }

    fn drawn(chosen: &ViewState, trouble: Option<&str>, (columns, rows): (u16, u16)) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        let look = sample_snapshot();
        let shown = ScreenContent { look: &look, chosen, trouble, colours: false };
        terminal.draw(|frame| draw(frame, &shown)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..rows).map(|y| line(y).trim_end().to_owned() + "\n").collect()
    }

    #[test]
    fn the_node_the_list_and_the_keys_are_shown_at_80_columns() {
        let text = drawn(&ViewState::default(), None, (80, 12));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("edge-7  up "), "{text}");
        assert!(lines[1].starts_with("cpu    [||||||||||          ]   50 % of 2 cores"), "{text}");
        assert!(lines[3].starts_with("1 allocations (30)  2 devices (1)  3 plugins (1)"), "{text}");
        for head in ["ALLOC", "JOB", "GROUP", "STATUS", "CPU", "MEMORY", "OF"] {
            assert!(lines[4].contains(head), "{head}: {text}");
        }
        assert!(lines[5].contains("job29") && lines[5].contains("29.0 %"), "most first: {text}");
        assert!(lines[11].starts_with("q quit") && lines[11].contains("sort: cpu"), "{text}");
    }

    #[test]
    fn the_other_lists_show_who_holds_a_device_and_how_plugins_do() {
        let mut chosen = ViewState::default();
        chosen.press(TopKey::Char('2'), 0);
        let text = drawn(&chosen, None, (80, 10));
        assert!(
            text.contains("HELD BY") && text.contains("web t") && text.contains("45 C"),
            "{text}"
        );
        chosen.press(TopKey::Char('3'), 0);
        let text = drawn(&chosen, None, (80, 10));
        assert!(text.contains("0 of 5") && text.contains("1.2 ms"), "{text}");
        let narrow = drawn(&chosen, None, (50, 10));
        assert!(narrow.contains("exec"), "names stay in a narrow terminal: {narrow}");
        chosen.filter = "nothing has this".into();
        assert!(drawn(&chosen, None, (80, 10)).contains("no plugins with this text"));
    }

    #[test]
    fn at_40_columns_every_word_that_is_shown_is_whole() {
        let mut chosen = ViewState::default();
        let text = drawn(&chosen, None, (40, 10));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "cpu    50 % of 2 cores", "{text}");
        assert_eq!(lines[3], "1 allocations (30) 2 devices 3 plugins", "{text}");
        let words: Vec<&str> = lines[4].split_whitespace().collect();
        assert_eq!(words, ["ALLOC", "JOB", "STATUS", "CPU"], "{text}");
        let words: Vec<&str> = lines[5].split_whitespace().collect();
        assert_eq!(words, ["0000001d", "job29", "running", "29.0", "%"], "{text}");
        assert_eq!(lines[9], KEYS_NARROW, "{text}");
        chosen.press(TopKey::Char('2'), 0);
        let text = drawn(&chosen, None, (40, 10));
        assert!(
            text.contains("fan0") && text.contains("healthy") && text.contains("web t"),
            "{text}"
        );
        chosen.press(TopKey::Char('3'), 0);
        let text = drawn(&chosen, None, (40, 10));
        assert!(
            text.contains("driver") && text.contains("running") && text.contains("0 of 5"),
            "{text}"
        );
    }

    #[test]
    fn a_terminal_that_is_too_small_is_told_what_is_needed() {
        for size in [(39, 20), (80, 7), (20, 4)] {
            let text = drawn(&ViewState::default(), None, size).replace('\n', " ");
            assert!(text.contains("needs 40") && text.contains("8 rows"), "{text}");
            assert!(!text.contains("job"), "{text}");
        }
    }

    #[test]
    fn columns_go_by_how_little_they_matter_and_the_others_stay_in_their_order() {
        assert_eq!(fitting_columns(&ALLOCATIONS, 80), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(fitting_columns(&ALLOCATIONS, 60), [0, 1, 2, 3, 4, 5]);
        assert_eq!(fitting_columns(&ALLOCATIONS, 52), [0, 1, 3, 4, 5]);
        assert_eq!(fitting_columns(&ALLOCATIONS, 1), [0, 1, 3, 4], "what names a row stays");
        for list in [&ALLOCATIONS[..], &DEVICES[..], &PLUGINS[..]] {
            let least: u16 =
                fitting_columns(list, COLUMNS_MIN).iter().map(|at| list[*at].least + 1).sum();
            assert!(least - 1 <= COLUMNS_MIN, "the least one has room");
            assert_eq!(
                fitting_columns(list, WIDE).len(),
                list.len(),
                "all are there where all is said"
            );
        }
    }

    #[test]
    fn an_agent_that_does_not_answer_is_told_above_what_was_seen_last() {
        let text = drawn(&ViewState::default(), Some("the agent does not answer"), (80, 10));
        assert!(text.starts_with("the agent does not answer\n"), "{text}");
        assert!(text.contains("job29"), "{text}");
    }

    #[test]
    fn it_fits_terminals_of_any_size_and_control_characters_do_nothing() {
        for size in [(1, 1), (3, 2), (20, 4), (400, 100)] {
            drawn(&ViewState::default(), None, size);
        }
        let mut look = sample_snapshot();
        look.allocations[29].job = "a\u{1b}[31mb\nc".into();
        look.allocations[28].job = "ab\u{202e}dc".into();
        let mut terminal = Terminal::new(TestBackend::new(80, 10)).unwrap();
        let (chosen, trouble) = (ViewState::default(), None);
        let shown = ScreenContent { look: &look, chosen: &chosen, trouble, colours: true };
        terminal.draw(|frame| draw(frame, &shown)).unwrap();
        let cells = terminal.backend().buffer().content.iter();
        assert!(
            cells
                .clone()
                .all(|cell| !cell.symbol().contains(ostler_model::printable::is_hidden_char))
        );
        let text: String = cells.map(|cell| cell.symbol()).collect();
        assert!(text.contains(r"ab\u{202e}dc"), "nor do marks of direction: {text}");
    }
}
