//! The use of the whole terminal, which is restored whatever ends that use.

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

use super::state::TopKey;
use super::view::{ScreenContent, draw};

/// How often the thread that waits for keys checks whether it is to end.
const POLL: Duration = Duration::from_millis(200);
/// Most keys that wait to be handled.
const WAITING_MAX: usize = 64;

/// An event of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScreenEvent {
    Key(TopKey),
    Resized,
}

/// Is standard input a terminal, which has keys?
pub(super) fn has_keys() -> bool {
    io::stdin().is_terminal()
}

/// The whole terminal. It is restored when this is dropped, and when the program panics before.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    ended: Arc<AtomicBool>,
}

impl Screen {
    /// Take over the terminal. Its events come from the receiver, which ends when the
    /// terminal is gone.
    pub(super) fn enter() -> io::Result<(Self, mpsc::Receiver<ScreenEvent>)> {
        restore_at_panic();
        enable_raw_mode()?;
        // From here on a failure restores the terminal.
        let ended = Arc::new(AtomicBool::new(false));
        let guard = RestoreGuard;
        execute!(io::stdout(), EnterAlternateScreen)?;
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        std::mem::forget(guard);
        let screen = Self { terminal, ended: Arc::clone(&ended) };
        let (tell, events) = mpsc::channel(WAITING_MAX);
        let thread = std::thread::Builder::new().name("ostler-keys".to_owned());
        thread.spawn(move || listen(&tell, &ended))?;
        Ok((screen, events))
    }

    /// Draw everything; only what has changed is written.
    pub(super) fn draw(&mut self, shown: &ScreenContent<'_>) -> io::Result<()> {
        self.terminal.draw(|frame| draw(frame, shown)).map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        drop(RestoreGuard);
    }
}

struct RestoreGuard;

impl Drop for RestoreGuard {
    fn drop(&mut self) {
        restore();
    }
}

/// Restore the terminal. Errors are ignored: a closed terminal needs nothing.
fn restore() {
    let _closed = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _closed = disable_raw_mode();
}

/// Restore the terminal before a panic prints its message, so that the message can be seen.
fn restore_at_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        restore();
        before(info);
    }));
}

fn listen(tell: &mpsc::Sender<ScreenEvent>, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        let event = match event::poll(POLL) {
            Ok(false) => continue,
            Ok(true) => event::read(),
            Err(error) => Err(error),
        };
        let Ok(event) = event else { return };
        if let Some(event) = translate_event(&event)
            && tell.blocking_send(event).is_err()
        {
            return;
        }
    }
}

fn translate_event(event: &event::Event) -> Option<ScreenEvent> {
    let key = match event {
        event::Event::Resize(..) => return Some(ScreenEvent::Resized),
        event::Event::Key(key) if key.kind != KeyEventKind::Release => key,
        _ => return None,
    };
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    let key = match key.code {
        KeyCode::Char('c') if control => TopKey::Interrupt,
        KeyCode::Char(_) if control => return None,
        KeyCode::Char(c) => TopKey::Char(c),
        KeyCode::Tab => TopKey::Tab,
        KeyCode::Enter => TopKey::Enter,
        KeyCode::Esc => TopKey::Escape,
        KeyCode::Backspace => TopKey::Backspace,
        KeyCode::Up => TopKey::Up,
        KeyCode::Down => TopKey::Down,
        KeyCode::PageUp => TopKey::PageUp,
        KeyCode::PageDown => TopKey::PageDown,
        _ => return None,
    };
    Some(ScreenEvent::Key(key))
}
