//! `ostler top`: what the node, its allocations, devices and plugins use now.
//!
//! ```text
//! keys (a thread) ─► Chosen ─┐
//! resize ────────────────────┼─► draw
//! agent ─► Look ─────────────┘      signal, q, panic ─► the terminal is as it was
//! ```

mod look;
mod screen;
mod state;
mod view;

use std::ffi::OsStr;
use std::time::Duration;

use tokio::sync::mpsc;

use super::args::top::TopArgs;
use super::connect::{self, Stop};
use super::exit::Exit;
use super::interrupt::Interrupts;
use super::output;
use super::table::table;
use super::terminal::Terminal;
use look::Look;
use ostler_api::client::{ApiClient, ClientError};
use ostler_model::clock;
use screen::{Event, Screen};
use state::{Chosen, Then};
use view::Shown;

/// Longest wait for one look: what is shown is then told to be old.
const LOOK_WAIT: Duration = Duration::from_secs(10);

/// Show it until somebody ends it, or print it once.
pub(super) async fn run(args: &TopArgs, terminal: &Terminal) -> Result<Exit, Stop> {
    let printed = args.once || args.json;
    let client = match printed {
        true => connect::connect(&args.at)?,
        false => connect::connect_unsaid(&args.at)?,
    };
    let shows = printed || (terminal.stdout && screen::has_keys());
    if !shows {
        return Err(Stop::Wrong(
            "ostler top needs a terminal for its input and output; --once and --json print what it shows".to_owned(),
        ));
    }
    if !printed && is_dumb(std::env::var_os("TERM").as_deref()) {
        return Err(Stop::Wrong(
            "ostler top draws on the whole terminal, and TERM=dumb is one that cannot do that; --once and --json print what \
             it shows"
                .to_owned(),
        ));
    }
    let first = look::look(&client).await?;
    let chosen = Chosen { sort: args.sort, filter: args.filter.clone(), ..Chosen::default() };
    if args.json {
        output::print_json(&chosen.of(&first), terminal)?;
        return Ok(Exit::Success);
    }
    if args.once {
        output::print(&plain(&chosen.of(&first), terminal), terminal)?;
        return Ok(Exit::Success);
    }
    follow(client, first, chosen, args.interval, terminal).await
}

/// Does the terminal say that it only takes lines?
fn is_dumb(term: Option<&OsStr>) -> bool {
    term.is_some_and(|term| term == "dumb")
}

async fn follow(
    client: ApiClient,
    first: Look,
    mut chosen: Chosen,
    interval: Duration,
    terminal: &Terminal,
) -> Result<Exit, Stop> {
    let cannot =
        |error: std::io::Error| Stop::Cannot(format!("the terminal cannot be used: {error}"));
    let mut interrupts = Interrupts::new().map_err(cannot)?;
    let (ask, asked) = mpsc::channel(1);
    let (found, mut looks) = mpsc::channel(1);
    let looking = looking(client, interval, asked, found);
    tokio::pin!(looking);
    let (mut screen, mut events) = Screen::enter().map_err(cannot)?;
    let (mut look, mut trouble) = (first, None::<String>);
    loop {
        let shown = Shown {
            look: &look,
            chosen: &chosen,
            trouble: trouble.as_deref(),
            colours: terminal.stdout_colours(),
        };
        screen.draw(&shown).map_err(cannot)?;
        tokio::select! {
            event = events.recv() => match event {
                Some(Event::Resized) => {}
                Some(Event::Key(key)) => match chosen.press(key, chosen.rows(&look)) {
                    Then::Draw => {}
                    // It is on its way already where this fails.
                    Then::Look => drop(ask.try_send(())),
                    Then::Quit => return Ok(Exit::Success),
                },
                // The terminal is gone.
                None => return Ok(Exit::Success),
            },
            Some(seen) = looks.recv() => match seen {
                Ok(seen) => (look, trouble) = (seen, None),
                Err(why) => trouble = Some(why),
            },
            // It ends when nobody takes what it finds.
            () = &mut looking => {}
            signal = interrupts.next() => return Ok(signal.exit()),
        }
    }
}

/// Ask the agent again and again, and at once when somebody wants it.
async fn looking(
    client: ApiClient,
    interval: Duration,
    mut asked: mpsc::Receiver<()>,
    found: mpsc::Sender<Result<Look, String>>,
) {
    loop {
        tokio::select! {
            () = clock::sleep(interval) => {}
            Some(()) = asked.recv() => {}
        }
        let looked = clock::timeout(LOOK_WAIT, look::look(&client)).await;
        let looked = match looked {
            None => Err(format!(
                "the agent has not answered for {LOOK_WAIT:?}; this is what it said before"
            )),
            Some(looked) => {
                looked.map_err(|error: ClientError| format!("{error}; this is what it said before"))
            }
        };
        if found.send(looked).await.is_err() {
            return;
        }
    }
}

/// The same as tables.
fn plain(look: &Look, terminal: &Terminal) -> String {
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
