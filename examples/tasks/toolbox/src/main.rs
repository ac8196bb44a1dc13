//! Small commands that do one thing each, for tests: `toolbox COMMAND ARGUMENTS`.
//!
//! Built as a component and as a core module of WASI preview 1. A failed command exits with
//! code 1 and says why on stderr.

use std::env;
use std::fs;
use std::hint::black_box;
use std::io::{self, BufWriter, Write};
use std::net::{TcpListener, TcpStream};
use std::process::exit;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const USAGE: &str = "toolbox COMMAND
  args WORD...           print the arguments, one a line
  exit CODE              exit with this code
  spin                   compute for ever
  sleep MS               wait
  alloc MIB              allocate and touch memory, then print its size
  write-lines N LEN      N lines of LEN bytes and a line end to stdout
  say-lines N LEN        N lines of LEN bytes and a line end to stdout, each written by itself;
                         then to stderr how many nanoseconds all of them took
  say-times N MS         N times, MS apart, the time in nanoseconds since 1970 on a line
  stderr WORD...         print the words to stderr
  cat FILE               print a file; - is standard input
  write FILE WORD...     write the words into a file
  ls DIR                 print the names in a directory, sorted
  env                    print the environment, sorted
  connect ADDRESS        open a TCP connection and print what is said until its end
  bind ADDRESS           listen on a TCP address, print it, and end
  panic                  panic
  recurse                overflow the stack";

fn main() {
    if let Err(error) = run() {
        eprintln!("toolbox: {error}");
        exit(1);
    }
}

#[expect(clippy::disallowed_methods, reason = "to sleep and to tell the time are commands")]
fn run() -> Outcome {
    let mut words = env::args().skip(1);
    let command = words.next().unwrap_or_default();
    let rest: Vec<String> = words.collect();
    let first = rest.first().map(String::as_str);
    let argument = || first.ok_or(USAGE);
    match command.as_str() {
        "args" => rest.iter().for_each(|word| println!("{word}")),
        "exit" => exit(argument()?.parse()?),
        "spin" => spin(),
        "sleep" => sleep(Duration::from_millis(argument()?.parse()?)),
        "alloc" => allocate(argument()?.parse()?),
        "write-lines" => {
            write_lines(argument()?.parse()?, rest.get(1).ok_or(USAGE)?.parse()?)?;
        }
        "say-lines" => {
            eprintln!("{}", say_lines(argument()?.parse()?, rest.get(1).ok_or(USAGE)?.parse()?)?);
        }
        "say-times" => {
            for _ in 0..argument()?.parse()? {
                sleep(Duration::from_millis(rest.get(1).ok_or(USAGE)?.parse()?));
                println!("{}", SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos());
            }
        }
        "stderr" => eprintln!("{}", rest.join(" ")),
        "cat" if first == Some("-") => drop(io::copy(&mut io::stdin(), &mut io::stdout())?),
        "cat" => io::stdout().write_all(&fs::read(argument()?)?)?,
        "write" => fs::write(argument()?, rest.get(1..).unwrap_or_default().join(" "))?,
        "ls" => list(argument()?)?,
        "env" => {
            let mut all: Vec<_> = env::vars().collect();
            all.sort();
            all.iter().for_each(|(name, value)| println!("{name}={value}"));
        }
        "connect" => {
            io::copy(&mut TcpStream::connect(argument()?)?, &mut io::stdout())?;
        }
        "bind" => println!("{}", TcpListener::bind(argument()?)?.local_addr()?),
        "panic" => panic(),
        "recurse" => println!("{}", recurse(black_box(1))),
        _ => return Err(USAGE.into()),
    }
    io::stdout().flush()?;
    Ok(())
}

fn spin() {
    let mut turns = 0_u64;
    loop {
        turns = black_box(turns.wrapping_add(1));
    }
}

/// One byte a page is written, so that the memory is really there.
fn allocate(mib: usize) {
    let mut memory = vec![0_u8; mib << 20];
    memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    println!("{}", black_box(&memory).len());
}

/// Line number n is the letter `a + n mod 26`, repeated.
fn write_lines(count: u64, len: usize) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(16 * 1024, io::stdout().lock());
    for (_, letter) in (0..count).zip((b'a'..=b'z').cycle()) {
        let mut line = vec![letter; len];
        line.push(b'\n');
        out.write_all(&line)?;
    }
    out.flush()
}

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn say_lines(count: u64, len: usize) -> io::Result<u128> {
    let mut line = vec![b'x'; len];
    line.push(b'\n');
    let mut out = io::stdout().lock();
    let began = Instant::now();
    for _ in 0..count {
        // Standard output hands on what ends a line.
        out.write_all(&line)?;
    }
    Ok(began.elapsed().as_nanos())
}

fn list(dir: &str) -> io::Result<()> {
    let names: io::Result<Vec<_>> =
        fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name())).collect();
    let mut names = names?;
    names.sort();
    names.iter().for_each(|name| println!("{}", name.to_string_lossy()));
    Ok(())
}

#[expect(clippy::panic, reason = "this is what the command is for")]
fn panic() {
    panic!("as asked");
}

/// Uses the stack of the WASM engine, not the one in linear memory; not a tail call in disguise.
#[inline(never)]
fn recurse(depth: u64) -> u64 {
    if depth == u64::MAX {
        return 0;
    }
    recurse(depth + 1).rotate_left(3) ^ depth
}
