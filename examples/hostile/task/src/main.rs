//! A task that tries to get out of its sandbox, or to take the node with it: `hostile-task ATTACK
//! ARGUMENTS`. Built as a component and as a core module of WASI preview 1. What it reaches it prints,
//! one to a line; an attack without end ends by the host.

#[cfg(all(target_os = "wasi", target_env = "p2"))]
mod raw;

use std::env;
use std::fs::{self, File, OpenOptions};
use std::hint::black_box;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, ToSocketAddrs as _, UdpSocket};
use std::time::{Duration, Instant, SystemTime};

/// What everybody tries.
const KNOWN: [&str; 22] = [
    "/",
    "/..",
    "/../..",
    ".",
    "..",
    "/etc/passwd",
    "/etc/passwd/",
    "/proc/self/environ",
    "/proc/self/exe",
    "/proc/self/root/etc/passwd",
    "/proc/self/fd/0",
    "/proc/1/environ",
    "/dev/null",
    "/dev/zero",
    "/dev/mem",
    "/dev/kvm",
    "/dev/vda",
    "/sys/kernel",
    "/run",
    "/var/run/docker.sock",
    "/root/.ssh",
    "/alloc/../../../../../../../../etc/passwd",
];

fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    let Some((attack, rest)) = words.split_first() else { return };
    match attack.as_str() {
        "spin" => loop {
            black_box(0);
        },
        "spin-calls" => loop {
            black_box(SystemTime::now());
        },
        "sleep" => sleep(),
        "memory" => loop {
            let mut block = vec![0_u8; 1 << 20];
            block.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
            std::mem::forget(black_box(block));
        },
        "recurse" => {
            black_box(recurse(black_box(1)));
        }
        "abort" => std::process::abort(),
        "complain" => complain(),
        "flood" => loop {
            if let Err(error) = std::io::stdout().write_all(&[b'x'; 4096]) {
                panic(&error);
            }
        },
        "files" => open_files(rest.first().map_or("", String::as_str)),
        "fill" => fill(rest.first().map_or("", String::as_str)),
        "many-files" => many_files(rest.first().map_or("", String::as_str)),
        "paths" => {
            let own = rest.iter().map(String::as_str);
            own.chain(KNOWN).for_each(try_path);
        }
        "links" => links(rest),
        "unlinked" => unlinked(rest.first().map_or("", String::as_str)),
        "replaced" => replaced(rest.first().map_or("", String::as_str)),
        "logs" => logs(rest.first().map_or("", String::as_str)),
        "list" => {
            let names = fs::read_dir(rest.first().map_or("", String::as_str));
            println!("{} names", names.map_or(0, |names| names.flatten().count()));
        }
        "overwrite" => {
            let path = rest.first().map_or("", String::as_str);
            try_path(path);
            println!("{} bytes", fs::read(path).map_or(0, |bytes| bytes.len()));
        }
        #[cfg(all(target_os = "wasi", target_env = "p2"))]
        "hold-listings" => raw::hold_listings(rest.first().map_or("", String::as_str)),
        #[cfg(all(target_os = "wasi", target_env = "p2"))]
        "hold-streams" => raw::hold_streams(rest.first().map_or("", String::as_str)),
        #[cfg(all(target_os = "wasi", target_env = "p2"))]
        "truncated" => raw::truncated(rest.first().map_or("", String::as_str)),
        "sockets" => rest.iter().for_each(|address| try_address(address)),
        _ => println!("no such attack"),
    }
}

/// Says much, then why it ends.
#[expect(clippy::panic, reason = "what a panic says is to be seen")]
fn complain() {
    (0..60).for_each(|number| eprintln!("complaint {number}"));
    panic!("the reason stands\nin two lines\u{1b}[2J");
}

#[expect(clippy::panic, reason = "a trap tells that the flood did not go on")]
fn panic(error: &std::io::Error) {
    panic!("{error}");
}

#[expect(clippy::disallowed_methods, reason = "sleeping for ever is an attack")]
fn sleep() {
    std::thread::sleep(Duration::from_secs(1_000_000));
}

/// Uses the stack of the WASM engine, not the one in linear memory; not a tail call in disguise.
#[inline(never)]
fn recurse(depth: u64) -> u64 {
    if depth == u64::MAX {
        return 0;
    }
    recurse(depth + 1).rotate_left(3) ^ depth
}

fn open_files(path: &str) {
    let mut count = 0;
    while let Ok(file) = File::open(path) {
        std::mem::forget(file);
        count += 1;
    }
    println!("{count} open");
}

/// Writes until it is refused, by writing on, then by making the file longer.
fn fill(path: &str) {
    let Ok(mut file) = File::create(path) else { return println!("cannot create {path}") };
    let block = vec![b'x'; 1 << 18];
    let mut written = 0_usize;
    while written < 1 << 30 {
        match file.write(&block) {
            Ok(count) => written += count,
            Err(error) => {
                println!("write: {written} bytes, then {:?}", error.kind());
                break;
            }
        }
    }
    match file.set_len(1 << 40) {
        Ok(()) => println!("set-size: a tebibyte"),
        Err(error) => println!("set-size: {:?}", error.kind()),
    }
}

fn many_files(dir: &str) {
    let made = (0..200_000).take_while(|n| File::create(format!("{dir}/{n}")).is_ok()).count();
    println!("{made} made");
}

/// Writes files of a mebibyte and takes their names away, but keeps them open; then closes them, and
/// writes one more.
fn unlinked(dir: &str) {
    let block = vec![b'x'; 1 << 20];
    let path = format!("{dir}/nameless");
    let write = || {
        let mut file = File::create(&path).ok()?;
        let written = file.write_all(&block).is_ok();
        let _gone = fs::remove_file(&path);
        written.then_some(file)
    };
    let kept: Vec<File> = (0..64).map_while(|_| write()).collect();
    match kept.len() {
        0 => println!("no room"),
        1..=10 => println!("within its room"),
        more => println!("{more} MiB without a name"),
    }
    drop(kept);
    println!("room again: {}", write().is_some());
}

/// What an honest program does that never leaves half a file: a hundred times the room it has.
fn replaced(dir: &str) {
    let block = vec![b'x'; 1 << 20];
    let (new, name) = (format!("{dir}/new"), format!("{dir}/file"));
    let once = |below: &str| {
        fs::create_dir(below)?;
        fs::write(&new, &block)?;
        fs::rename(&new, &name)?;
        fs::remove_dir(below)
    };
    let done = (0..100).take_while(|n| once(&format!("{dir}/dir{n}")).is_ok()).count();
    println!("{done} replaced");
}

/// Tries to change the logs of its group, through every name it can make.
fn logs(dir: &str) {
    let note = |what: &str, worked: bool| {
        if worked {
            println!("{what}");
        }
    };
    let file = format!("{dir}/logs/other.stdout.0");
    note("write", OpenOptions::new().append(true).open(&file).is_ok());
    note("truncate", OpenOptions::new().write(true).truncate(true).open(&file).is_ok());
    note("create", File::create(format!("{dir}/logs/mine")).is_ok());
    note("remove", fs::remove_file(&file).is_ok());
    note("move", fs::rename(&file, format!("{dir}/data/moved")).is_ok());
    note("replace", fs::rename(format!("{dir}/data/own"), &file).is_ok());
    note("move all", fs::rename(format!("{dir}/logs"), format!("{dir}/data/logs")).is_ok());
    note("hard link", fs::hard_link(&file, format!("{dir}/data/linked")).is_ok());
    let _made = make_link("../logs", &format!("{dir}/data/link"));
    note("through a link", File::create(format!("{dir}/data/link/mine")).is_ok());
    let own = fs::write(format!("{dir}/data/mine"), "own").is_ok();
    let read = fs::read_to_string(&file).is_ok_and(|text| text == "honest");
    println!("own {own}, read {read}");
}

fn try_path(path: &str) {
    let note = |what: &str, worked: bool| {
        if worked {
            println!("{what} {path}");
        }
    };
    note("read", File::open(path).is_ok_and(|mut file| file.read(&mut [0; 1]).is_ok()));
    note("list", fs::read_dir(path).is_ok());
    note("stat", fs::metadata(path).is_ok());
    note("write", OpenOptions::new().write(true).open(path).is_ok());
    note("create", File::create(format!("{path}/burglar")).is_ok());
    note("remove", fs::remove_file(path).is_ok());
}

/// Makes links in the first directory to the other paths, and looks through them.
fn links(words: &[String]) {
    let Some((dir, targets)) = words.split_first() else { return };
    for (number, target) in targets.iter().enumerate() {
        let link = format!("{dir}/link{number}");
        if make_link(target, &link) {
            println!("linked {target}");
        }
        if fs::read(&link).is_ok() || fs::read_dir(&link).is_ok() {
            println!("through {target}");
        }
        if fs::hard_link(target, format!("{dir}/hard{number}")).is_ok() {
            println!("hard link {target}");
        }
    }
}

#[cfg(target_os = "wasi")]
#[allow(deprecated, reason = "the one way of std to make a link on this target")]
fn make_link(target: &str, link: &str) -> bool {
    fs::soft_link(target, link).is_ok()
}

#[cfg(not(target_os = "wasi"))]
fn make_link(_target: &str, _link: &str) -> bool {
    false
}

fn try_address(address: &str) {
    let began = Instant::now();
    let note = |what: &str, worked: bool| {
        if worked {
            println!("{what} {address}");
        }
    };
    note(
        "name",
        address.to_socket_addrs().is_ok_and(|mut all| all.next().is_some()) && !is_number(address),
    );
    note("connect", TcpStream::connect(address).is_ok());
    note("listen", TcpListener::bind(address).is_ok());
    note("udp", UdpSocket::bind(address).is_ok());
    black_box(began.elapsed());
}

fn is_number(address: &str) -> bool {
    address.parse::<std::net::SocketAddr>().is_ok()
}
