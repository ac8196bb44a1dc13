//! The binary: everything is in [`ostler_cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ostler_cli::main(std::env::args_os().collect())
}
