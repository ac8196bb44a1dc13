//! How a [`Look`] is drawn. Pure but for the frame.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table};

use super::look::{AllocRow, DeviceRow, Look, NodeUse, PluginRow};
use super::state::{Chosen, Tab};
use crate::output::size;

/// What the foot says.
const KEYS: &str = "q quit  tab/1-3 list  s sort  r reverse  / filter  ↑↓ move  space now";
/// Columns of a bar.
const BAR: usize = 20;

/// Everything that is drawn.
pub(super) struct Shown<'a> {
    pub look: &'a Look,
    pub chosen: &'a Chosen,
    /// Why the look is not of now.
    pub trouble: Option<&'a str>,
    pub colours: bool,
}

/// Draw it.
pub(super) fn draw(frame: &mut Frame<'_>, shown: &Shown<'_>) {
    let rows =
        [Constraint::Length(3), Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)];
    let [head, tabs, list, foot] = Layout::vertical(rows).areas(frame.area());
    frame.render_widget(Paragraph::new(header(shown)), head);
    frame.render_widget(Paragraph::new(tab_line(shown)), tabs);
    let look = shown.chosen.of(shown.look);
    let widths = |widths: &[Constraint]| widths.to_vec();
    use Constraint::{Length, Min};
    match shown.chosen.tab {
        Tab::Allocations => {
            let columns = ["ALLOC", "JOB", "GROUP", "STATUS", "CPU", "MEMORY", "OF"];
            let of = [Length(8), Min(12), Min(6), Length(9), Length(9), Length(10), Length(10)];
            table(frame, list, shown, columns, widths(&of), look.allocations.iter().map(alloc));
        }
        Tab::Devices => {
            let columns = ["GROUP", "DEVICE", "HEALTH", "HELD BY", "MEASURED"];
            let of = [Min(14), Min(10), Min(8), Min(10), Length(14)];
            table(frame, list, shown, columns, widths(&of), look.devices.iter().map(device));
        }
        Tab::Plugins => {
            let columns = ["PLUGIN", "KIND", "VERSION", "STATE", "STRIKES", "CALLS", "P99"];
            let of = [Min(10), Length(7), Length(9), Length(11), Length(8), Length(10), Length(10)];
            table(frame, list, shown, columns, widths(&of), look.plugins.iter().map(plugin));
        }
    }
    frame.render_widget(Paragraph::new(footer(shown)), foot);
}

fn header(shown: &Shown<'_>) -> Vec<Line<'static>> {
    let node = &shown.look.node;
    let up = crate::connect::span(std::time::Duration::from_secs_f64(node.up_seconds.max(0.0)));
    let first = match shown.trouble {
        None => Line::from(format!("{}  up {up}", node.name)),
        Some(why) => Line::from(Span::styled(why.to_owned(), colour(shown, Color::Red))),
    };
    vec![first, Line::from(cpu(node)), Line::from(memory(node))]
}

fn cpu(node: &NodeUse) -> String {
    let share = node.cpu_percent.unwrap_or(0.0) / 100.0;
    let used = node.cpu_percent.map_or("–".to_owned(), |percent| format!("{percent:.0} %"));
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

/// A share of 1 as a bar.
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

/// For people.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes of a machine")]
pub(super) fn bytes(count: f64) -> String {
    size(count.max(0.0) as u64)
}

/// The lists, with the one that is shown.
fn tab_line(shown: &Shown<'_>) -> Line<'static> {
    let look = shown.look;
    let counts = [look.allocations.len(), look.devices.len(), look.plugins.len()];
    let tab = |(number, (tab, count)): (usize, (Tab, usize))| {
        let style = match tab == shown.chosen.tab {
            true => Style::new().add_modifier(Modifier::REVERSED),
            false => Style::new(),
        };
        [Span::styled(format!("{} {} ({count})", number + 1, tab.name()), style), Span::raw("  ")]
    };
    Tab::ALL.into_iter().zip(counts).enumerate().flat_map(tab).collect::<Vec<_>>().into()
}

fn footer(shown: &Shown<'_>) -> Line<'static> {
    let chosen = shown.chosen;
    let turned = if chosen.reverse { ", reversed" } else { "" };
    match (chosen.typing, chosen.filter.is_empty()) {
        (true, _) => Line::from(format!("filter: {}_  (enter: keep, esc: none)", chosen.filter)),
        (false, false) => Line::from(format!(
            "filter: {}  (esc: none)  sort: {}{turned}  q quit",
            chosen.filter,
            chosen.sort.name()
        )),
        (false, true) => Line::from(format!("{KEYS}  sort: {}{turned}", chosen.sort.name())),
    }
}

fn table<const N: usize>(
    frame: &mut Frame<'_>,
    area: Rect,
    shown: &Shown<'_>,
    columns: [&'static str; N],
    widths: Vec<Constraint>,
    rows: impl Iterator<Item = [String; N]>,
) {
    let rows: Vec<_> = rows.skip(shown.chosen.first).map(Row::new).collect();
    if rows.is_empty() {
        let text = match shown.chosen.filter.is_empty() {
            true => format!("no {}", shown.chosen.tab.name()),
            false => format!("no {} with this text", shown.chosen.tab.name()),
        };
        return frame.render_widget(Paragraph::new(text), area);
    }
    let head = Row::new(columns).style(Style::new().add_modifier(Modifier::BOLD));
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
        row.id.chars().take(8).collect(),
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

fn colour(shown: &Shown<'_>, colour: Color) -> Style {
    if shown.colours { Style::new().fg(colour) } else { Style::new() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::top::state::Key;

    fn look() -> Look {
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
        Look { node, allocations: allocations.collect(), devices, plugins }
    }

    fn drawn(chosen: &Chosen, trouble: Option<&str>, (columns, rows): (u16, u16)) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        let look = look();
        let shown = Shown { look: &look, chosen, trouble, colours: false };
        terminal.draw(|frame| draw(frame, &shown)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..rows).map(|y| line(y).trim_end().to_owned() + "\n").collect()
    }

    #[test]
    fn the_node_the_list_and_the_keys_are_shown_at_80_columns() {
        let text = drawn(&Chosen::default(), None, (80, 12));
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
        let mut chosen = Chosen::default();
        chosen.press(Key::Char('2'), 0);
        let text = drawn(&chosen, None, (80, 10));
        assert!(
            text.contains("HELD BY") && text.contains("web t") && text.contains("45 C"),
            "{text}"
        );
        chosen.press(Key::Char('3'), 0);
        let text = drawn(&chosen, None, (80, 10));
        assert!(text.contains("0 of 5") && text.contains("1.2 ms"), "{text}");
        let narrow = drawn(&chosen, None, (50, 10));
        assert!(narrow.contains("exec"), "names stay in a narrow terminal: {narrow}");
        chosen.filter = "nothing has this".into();
        assert!(drawn(&chosen, None, (80, 10)).contains("no plugins with this text"));
    }

    #[test]
    fn an_agent_that_does_not_answer_is_told_above_what_was_seen_last() {
        let text = drawn(&Chosen::default(), Some("the agent does not answer"), (80, 10));
        assert!(text.starts_with("the agent does not answer\n"), "{text}");
        assert!(text.contains("job29"), "{text}");
    }

    #[test]
    fn it_fits_terminals_of_any_size_and_control_characters_do_nothing() {
        for size in [(1, 1), (3, 2), (20, 4), (400, 100)] {
            drawn(&Chosen::default(), None, size);
        }
        let mut look = look();
        look.allocations[29].job = "a\u{1b}[31mb\nc".into();
        let mut terminal = Terminal::new(TestBackend::new(80, 10)).unwrap();
        let (chosen, trouble) = (Chosen::default(), None);
        let shown = Shown { look: &look, chosen: &chosen, trouble, colours: true };
        terminal.draw(|frame| draw(frame, &shown)).unwrap();
        let cells = terminal.backend().buffer().content.iter();
        assert!(cells.clone().all(|cell| !cell.symbol().contains(char::is_control)));
    }
}
