//! Greets, says which task it is, and prints the content of each file device it was assigned.

use std::env;
use std::fs;

fn main() {
    let name = env::args().nth(1).unwrap_or_else(|| "world".to_owned());
    println!("Hello, {name}, from a WASM task.");
    if let Ok(task) = env::var("NOMAD_TASK_NAME") {
        println!("I am task {task}.");
    }
    let devices = env::var("FILE_DEVICE_PATHS").unwrap_or_default();
    for path in devices.split(',').filter(|path| !path.is_empty()) {
        match fs::read_to_string(path) {
            Ok(content) => println!("device {path}: {}", content.trim_end()),
            Err(error) => eprintln!("cannot read device {path}: {error}"),
        }
    }
    eprintln!("This line goes to stderr.");
}
