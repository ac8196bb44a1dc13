//! The terminal as long as it is used as a whole, and as it was before whatever ends that.

use std::io::{self, IsTerminal as _, Stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use tokio::sync::mpsc;

use super::state::Key;
use super::view::{Shown, draw};

/// How often the thread that waits for keys looks whether it is still wanted.
const POLL: Duration = Duration::from_millis(200);
/// Keys that wait to be looked at.
const WAITING_MAX: usize = 64;

/// What comes from the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Key(Key),
    Resized,
}

/// Are there keys to be pressed?
pub(super) fn has_keys() -> bool {
    io::stdin().is_terminal()
}

/// The whole terminal. It is as it was when this is dropped, and when the program panics before.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    ended: Arc<AtomicBool>,
}

impl Screen {
    /// Take the terminal, and tell of what comes from it. Nothing more comes when it is gone.
    pub(super) fn enter() -> io::Result<(Self, mpsc::Receiver<Event>)> {
        restore_at_panic();
        enable_raw_mode()?;
        // From here on a failure restores it.
        let ended = Arc::new(AtomicBool::new(false));
        let guard = Restore;
        execute!(io::stdout(), EnterAlternateScreen)?;
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        std::mem::forget(guard);
        let screen = Self { terminal, ended: Arc::clone(&ended) };
        let (tell, events) = mpsc::channel(WAITING_MAX);
        let thread = std::thread::Builder::new().name("ostler-keys".to_owned());
        thread.spawn(move || listen(&tell, &ended))?;
        Ok((screen, events))
    }

    /// Draw everything anew; what is the same is not written.
    pub(super) fn draw(&mut self, shown: &Shown<'_>) -> io::Result<()> {
        self.terminal.draw(|frame| draw(frame, shown)).map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        drop(Restore);
    }
}

struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        restore();
    }
}

/// A closed terminal needs nothing.
fn restore() {
    let _closed = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _closed = disable_raw_mode();
}

/// The message of a panic is to be seen.
fn restore_at_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        restore();
        before(info);
    }));
}

fn listen(tell: &mpsc::Sender<Event>, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        let event = match event::poll(POLL) {
            Ok(false) => continue,
            Ok(true) => event::read(),
            Err(error) => Err(error),
        };
        let Ok(event) = event else { return };
        if let Some(event) = of(&event)
            && tell.blocking_send(event).is_err()
        {
            return;
        }
    }
}

fn of(event: &event::Event) -> Option<Event> {
    let key = match event {
        event::Event::Resize(..) => return Some(Event::Resized),
        event::Event::Key(key) if key.kind != KeyEventKind::Release => key,
        _ => return None,
    };
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    let key = match key.code {
        KeyCode::Char('c') if control => Key::Interrupt,
        KeyCode::Char(_) if control => return None,
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Tab => Key::Tab,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        _ => return None,
    };
    Some(Event::Key(key))
}
