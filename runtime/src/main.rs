//! The binary: everything is in [`ostler::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ostler::cli::main(std::env::args_os())
}
