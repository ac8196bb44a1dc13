//! A key-value server over TCP: one command a line, one answer a line.
//!
//! ```text
//! PING          PONG
//! SET key text  OK
//! GET key       VALUE text | NONE
//! DEL key       OK | NONE
//! QUIT          BYE, and the connection is closed
//! ```
//!
//! It listens on the port with the label of its first argument (default `db`), at the address
//! the agent put into `NOMAD_ALLOC_ADDR_<label>`, or where the allocation has no network of its own into
//! `NOMAD_ADDR_<label>`.

use std::env;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::sleep;
use std::time::Duration;

use store::{Answer, Store};

mod store;

const CLIENTS_MAX: usize = 64;
const LINE_BYTES_MAX: usize = 4096;
/// Answers a client has not taken yet.
const PENDING_BYTES_MAX: usize = 64 * 1024;
/// Pause when no client had anything to say: doubled up to the second value.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

fn main() -> Result<()> {
    let label = env::args().nth(1).unwrap_or_else(|| "db".to_owned());
    let variable = |kind: &str| env::var(format!("NOMAD_{kind}_{label}"));
    let address = variable("ALLOC_ADDR")
        .or_else(|_| variable("ADDR"))
        .map_err(|_| Error::new(ErrorKind::NotFound, format!("NOMAD_ADDR_{label} is not set")))?;
    let listener = TcpListener::bind(&address)?;
    listener.set_nonblocking(true)?;
    println!("listening on {address}");
    serve(&listener)
}

#[expect(clippy::disallowed_methods, reason = "one thread watches many sockets")]
fn serve(listener: &TcpListener) -> Result<()> {
    let mut store = Store::default();
    let mut clients: Vec<Client> = vec![];
    let mut pause = PAUSE.0;
    loop {
        let mut busy = false;
        if clients.len() < CLIENTS_MAX {
            match listener.accept() {
                Ok((stream, _)) => {
                    busy = true;
                    if stream.set_nonblocking(true).is_ok() {
                        clients.push(Client { stream, input: vec![], output: vec![], open: true });
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        for client in &mut clients {
            // One client's broken connection is that client's end, not the server's.
            busy |= client.turn(&mut store).unwrap_or_else(|_| {
                client.drop_connection();
                true
            });
        }
        clients.retain(|client| client.open || !client.output.is_empty());
        pause = if busy { PAUSE.0 } else { (pause * 2).min(PAUSE.1) };
        if !busy {
            sleep(pause);
        }
    }
}

struct Client {
    stream: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Still read from; when not, only what is pending is written.
    open: bool,
}

impl Client {
    /// Read, answer and write what is possible now. True when anything moved.
    fn turn(&mut self, store: &mut Store) -> Result<bool> {
        let mut busy = false;
        if self.open && self.output.len() < PENDING_BYTES_MAX {
            let mut chunk = [0; 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => self.open = false,
                Ok(read) => {
                    busy = true;
                    self.input.extend(chunk.iter().take(read));
                    self.answer(store);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        if !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(written) => {
                    busy = true;
                    self.output.drain(..written);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(busy)
    }

    fn answer(&mut self, store: &mut Store) {
        while let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.input.drain(..=end).collect();
            let Answer { text, quit } = store.answer(&String::from_utf8_lossy(&line));
            self.output.extend(text.as_bytes());
            self.output.push(b'\n');
            if quit {
                self.open = false;
                return;
            }
        }
        if self.input.len() > LINE_BYTES_MAX {
            self.output.extend(b"ERROR line too long\n");
            self.open = false;
        }
    }

    fn drop_connection(&mut self) {
        self.open = false;
        self.output.clear();
    }
}
