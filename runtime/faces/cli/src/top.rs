//! `ostler top`: shows what the node, its allocations, devices and plugins use now.
//!
//! ```text
//! keys (a thread) ─► ViewState ─┐
//! resize ───────────────────────┼─► draw
//! agent ─► TopSnapshot ─────────┘      signal, q, panic ─► the terminal is restored
//! ```

mod screen;
mod snapshot;
mod state;
mod view;

use std::ffi::OsStr;
use std::time::Duration;

use tokio::sync::mpsc;

use super::args::top::TopArgs;
use super::connect::{self, CliError};
use super::exit::Exit;
use super::interrupt::Interrupts;
use super::output;
use super::table::table;
use super::terminal::TerminalInfo;
use ostler_api::client::{ApiClient, ClientError};
use ostler_model::clock;
use screen::{Screen, ScreenEvent};
use snapshot::TopSnapshot;
use state::{KeyEffect, ViewState};
use view::ScreenContent;

/// Longest wait for a snapshot. After that the screen says that its content is old.
const LOOK_WAIT: Duration = Duration::from_secs(10);

/// Show the screen until somebody ends it, or print a snapshot once.
pub(super) async fn run(args: &TopArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let printed = args.once || terminal.json;
    let client =
        if printed { connect::connect(&args.at)? } else { connect::connect_silent(&args.at)? };
    let shows = printed || (terminal.stdout && screen::has_keys());
    if !shows {
        return Err(CliError::Wrong(
            "ostler top needs a terminal for its input and output; --once and --json print what it shows".to_owned(),
        ));
    }
    if !printed && is_dumb(std::env::var_os("TERM").as_deref()) {
        return Err(CliError::Wrong(
            "ostler top draws on the whole terminal, and TERM=dumb is one that cannot do that; --once and --json print what \
             it shows"
                .to_owned(),
        ));
    }
    let first = snapshot::fetch_snapshot(&client).await?;
    let chosen = ViewState { sort: args.sort, filter: args.filter.clone(), ..ViewState::default() };
    if terminal.json {
        output::print_json(&chosen.filter_snapshot(&first), terminal)?;
        return Ok(Exit::Success);
    }
    if args.once {
        output::print(&tables_text(&chosen.filter_snapshot(&first), terminal), terminal)?;
        return Ok(Exit::Success);
    }
    follow(client, first, chosen, args.interval, terminal).await
}

/// Does `TERM` say that the terminal only takes lines?
fn is_dumb(term: Option<&OsStr>) -> bool {
    term.is_some_and(|term| term == "dumb")
}

async fn follow(
    client: ApiClient,
    first: TopSnapshot,
    mut chosen: ViewState,
    interval: Duration,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    let cannot =
        |error: std::io::Error| CliError::Cannot(format!("the terminal cannot be used: {error}"));
    let mut interrupts = Interrupts::new().map_err(cannot)?;
    let (ask, asked) = mpsc::channel(1);
    let (found, mut looks) = mpsc::channel(1);
    let looking = poll_snapshots(client, interval, asked, found);
    tokio::pin!(looking);
    let (mut screen, mut events) = Screen::enter().map_err(cannot)?;
    let (mut look, mut trouble) = (first, None::<String>);
    loop {
        let shown = ScreenContent {
            look: &look,
            chosen: &chosen,
            trouble: trouble.as_deref(),
            colours: terminal.stdout_colours(),
        };
        screen.draw(&shown).map_err(cannot)?;
        tokio::select! {
            event = events.recv() => match event {
                Some(ScreenEvent::Resized) => {}
                Some(ScreenEvent::Key(key)) => match chosen.press(key, chosen.row_count(&look)) {
                    KeyEffect::Draw => {}
                    // Where this fails, a request is already waiting.
                    KeyEffect::Refresh => drop(ask.try_send(())),
                    KeyEffect::Quit => return Ok(Exit::Success),
                },
                // The terminal is gone.
                None => return Ok(Exit::Success),
            },
            Some(seen) = looks.recv() => match seen {
                Ok(seen) => (look, trouble) = (seen, None),
                Err(why) => trouble = Some(why),
            },
            // It ends when nobody takes its snapshots any more.
            () = &mut looking => {}
            signal = interrupts.next() => return Ok(signal.exit()),
        }
    }
}

/// Take snapshots of the agent at each interval, and at once when the user asks for one.
async fn poll_snapshots(
    client: ApiClient,
    interval: Duration,
    mut asked: mpsc::Receiver<()>,
    found: mpsc::Sender<Result<TopSnapshot, String>>,
) {
    loop {
        tokio::select! {
            () = clock::sleep(interval) => {}
            Some(()) = asked.recv() => {}
        }
        let looked = clock::timeout(LOOK_WAIT, snapshot::fetch_snapshot(&client)).await;
        let looked = match looked {
            None => Err(format!(
                "the agent has not answered for {LOOK_WAIT:?}; this is its last answer"
            )),
            Some(looked) => {
                looked.map_err(|error: ClientError| format!("{error}; this is its last answer"))
            }
        };
        if found.send(looked).await.is_err() {
            return;
        }
    }
}

/// A snapshot as tables of text.
fn tables_text(look: &TopSnapshot, terminal: &TerminalInfo) -> String {
    let node = &look.node;
    let mut text = format!(
        "{}\ncpu     {}\nmemory  {} of {}\n\n",
        node.name,
        node.cpu_percent.map_or("not measured yet".to_owned(), |cpu| format!("{cpu:.0} %")),
        view::bytes(node.memory_used),
        view::bytes(node.memory_total)
    );
    let mut section =
        |title: &str, body: String| text.push_str(&output::section(title, &body, terminal));
    let head = ["ALLOC", "JOB", "GROUP", "STATUS", "CPU", "MEMORY", "OF"];
    section("allocations", table(head, look.allocations.iter().map(view::alloc), terminal));
    let head = ["GROUP", "DEVICE", "HEALTH", "HELD BY", "MEASURED"];
    section("devices", table(head, look.devices.iter().map(view::device), terminal));
    let head = ["PLUGIN", "KIND", "VERSION", "STATE", "STRIKES", "CALLS", "P99"];
    section("plugins", table(head, look.plugins.iter().map(view::plugin), terminal));
    text
}
