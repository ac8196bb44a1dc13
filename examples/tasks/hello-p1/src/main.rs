//! Greets, and exits with the code that its first argument says. Built as a core module of WASI
//! preview 1, where exit codes are kept: a preview-2 component can only tell success from failure.

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    println!("Hello from a WASI preview 1 task.");
    match env::args().nth(1).map(|code| code.parse::<u8>()) {
        None => ExitCode::SUCCESS,
        Some(Ok(code)) => {
            println!("exiting with code {code}");
            ExitCode::from(code)
        }
        Some(Err(error)) => {
            eprintln!("the first argument is no exit code from 0 to 255: {error}");
            ExitCode::from(2)
        }
    }
}
