//! A process that has locked itself in, and what somebody inside tries.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::*;
use crate::confine::{ConfineError, Confinement, confine};

/// Before the name of what was tried, in the output of [`the_confined`].
const TRIED: &str = "tried ";

/// Run [`the_confined`] in a role; what it tried and how that went.
fn confined(role: &str, dir: &Path) -> BTreeMap<String, String> {
    #[allow(clippy::disallowed_methods, reason = "a process for tests")]
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "tests::confined::the_confined", "--ignored", "--nocapture"]);
    // One thread, as the process that is confined has.
    command.arg("--test-threads=1");
    command.env("OSTLER_TEST_CONFINED", role).env("OSTLER_TEST_DIR", dir);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let tried = text.lines().filter_map(|line| line.split_once(TRIED)?.1.rsplit_once(": "));
    let tried = tried.map(|(name, went)| (name.to_owned(), went.to_owned())).collect();
    assert!(output.status.success(), "{tried:#?}\n{}", String::from_utf8_lossy(&output.stderr));
    tried
}

fn scene() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["w", "r", "other"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
        std::fs::write(dir.path().join(name).join("file"), "text").unwrap();
    }
    std::os::unix::fs::symlink(dir.path().join("other/file"), dir.path().join("w/link")).unwrap();
    let tool = dir.path().join("r/tool");
    std::fs::copy("/bin/true", tool).unwrap();
    dir
}

/// Not a test: the process that locks itself in, run by [`confined`].
#[test]
#[ignore = "only does something where it was started for that"]
fn the_confined() {
    let Ok(role) = std::env::var("OSTLER_TEST_CONFINED") else { return };
    // Tests have a thread beside the main one; what is forked here has one.
    // SAFETY: the other thread only waits for this one, so it holds no lock.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let failed = std::panic::catch_unwind(|| alone(&role)).is_err();
        // SAFETY: nothing of the parent's is run at this end.
        unsafe { libc::_exit(i32::from(failed)) }
    }
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    let ended = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
    let (_, status) = ended.unwrap().unwrap();
    println!("{TRIED}signal: {}", status.terminating_signal().unwrap_or(0));
    assert_eq!(status.exit_status().unwrap_or(0), 0);
}

fn alone(role: &str) {
    let dir = PathBuf::from(std::env::var_os("OSTLER_TEST_DIR").unwrap());
    let to = Confinement {
        write: vec![dir.join("w")],
        read: vec![dir.join("r")],
        ..Confinement::default()
    };
    let parent = i32::try_from(std::os::unix::process::parent_id()).unwrap();
    // Descriptors that were handed over.
    let handed = std::fs::File::open(dir.join("w")).unwrap();
    println!();
    if role == "absent" {
        let to = Confinement { read: vec![dir.join("absent")], ..to };
        let refused = confine(&to).unwrap_err();
        assert!(matches!(&refused, ConfineError::Missing { path, .. } if *path == to.read[0]));
        println!("{TRIED}a directory that is absent: {refused}");
        return;
    }
    let confined = confine(&to).unwrap();
    println!("{TRIED}landlock: {}", if confined.landlock.is_ok() { "ok" } else { "none" });
    println!("{TRIED}filter: {}", if confined.filter.is_ok() { "ok" } else { "none" });
    match role {
        "abort" => std::process::abort(),
        _ => {
            what_it_needs(&dir, &handed);
            what_it_must_not(&dir, parent);
            own_status();
            let confined = confined.to_string();
            println!("{TRIED}said: {confined}");
        }
    }
}

fn tell<T>(name: &str, went: io::Result<T>) {
    match went {
        Ok(_) => println!("{TRIED}{name}: ok"),
        Err(error) => println!("{TRIED}{name}: {}", error.raw_os_error().unwrap_or(0)),
    }
}

/// A call of the kernel as it is.
fn call(number: libc::c_long, args: [libc::c_long; 4]) -> io::Result<()> {
    let [a, b, c, d] = args;
    // SAFETY: tests: pointers among these are null, or the call is refused before they are looked at.
    match unsafe { libc::syscall(number, a, b, c, d, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn what_it_needs(dir: &Path, handed: &std::fs::File) {
    tell("write", std::fs::write(dir.join("w/new"), "text"));
    tell("write below", std::fs::create_dir(dir.join("w/dir")));
    tell("rename", std::fs::rename(dir.join("w/new"), dir.join("w/dir/new")));
    tell("read what it wrote", std::fs::read(dir.join("w/dir/new")));
    tell("read", std::fs::read(dir.join("r/file")));
    let below =
        rustix::fs::openat(handed, "file", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
    tell("below what was handed over", below.map_err(io::Error::from));
    tell("its pages", std::fs::File::open("/proc/self/pagemap"));
    tell("its map", std::fs::read("/proc/self/maps"));
    tell("a thread", std::thread::Builder::new().spawn(|| {}).map(|thread| thread.join().unwrap()));
    tell("code from a file", mapped(Some(&dir.join("r/tool")), libc::PROT_READ | libc::PROT_EXEC));
    tell("code from memory", mapped(None, libc::PROT_READ | libc::PROT_EXEC));
    let connected = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| std::net::TcpStream::connect(listener.local_addr()?));
    tell("the network", connected);
    tell("a pair", std::os::unix::net::UnixStream::pair());
    tell(
        "its own niceness",
        rustix::process::setpriority_process(None, 19).map_err(io::Error::from),
    );
}

/// Map a page of a file or of nothing, writable, and make it `protected`.
fn mapped(file: Option<&Path>, protected: libc::c_int) -> io::Result<()> {
    use std::os::fd::AsRawFd as _;
    let file = file.map(std::fs::File::open).transpose()?;
    let (fd, anonymous) = match &file {
        Some(file) => (file.as_raw_fd(), 0),
        None => (-1, libc::MAP_ANONYMOUS),
    };
    let (null, flags) = (std::ptr::null_mut(), libc::MAP_PRIVATE | anonymous);
    // SAFETY: tests: a new mapping of its own, used by nobody.
    unsafe {
        let at = libc::mmap(null, 4096, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0);
        if at == libc::MAP_FAILED || libc::mprotect(at, 4096, protected) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

fn what_it_must_not(dir: &Path, parent: i32) {
    files_of_others(dir, parent);
    processes_of_others(parent);
    #[allow(clippy::disallowed_methods, reason = "it is refused")]
    let run = |path: PathBuf| std::process::Command::new(path).status();
    tell("no: a program", run("/bin/true".into()));
    tell("no: a program of its own", run(dir.join("r/tool")));
    tell("no: exec", call(libc::SYS_execve, [0; 4]));
    let child = i64::from(libc::SIGCHLD);
    tell("no: a process", call(libc::SYS_clone, [child, 0, 0, 0]));
    tell("no: another user", call(libc::SYS_setresuid, [1, 1, 1, 0]));
    tell("no: its group", call(libc::SYS_setresgid, [1, 1, 1, 0]));
    tell(
        "no: a user namespace",
        call(libc::SYS_unshare, [i64::from(libc::CLONE_NEWUSER), 0, 0, 0]),
    );
    tell("no: a mount", call(libc::SYS_mount, [0; 4]));
    tell("no: a root", call(libc::SYS_chroot, [0; 4]));
    tell("no: the operator's socket", std::os::unix::net::UnixStream::connect(dir.join("socket")));
    tell("no: a pair that sends anywhere", std::os::unix::net::UnixDatagram::pair());
    let netlink = [i64::from(libc::AF_NETLINK), i64::from(libc::SOCK_RAW), 0, 0];
    tell("no: a datagram", std::net::UdpSocket::bind("127.0.0.1:0"));
    tell("no: netlink", call(libc::SYS_socket, netlink));
    tell("no: shared memory", call(libc::SYS_shmget, [7, 4096, 0o1600, 0]));
}

fn files_of_others(dir: &Path, parent: i32) {
    for path in ["/etc/passwd", "/etc/shadow", "/bin/true", "/proc/cpuinfo"] {
        tell(&format!("no file: {path}"), std::fs::read(path));
    }
    tell("no file: others", std::fs::read(dir.join("other/file")));
    tell("no file: listed", std::fs::read_dir(dir.join("other")));
    tell("no file: by a link", std::fs::read(dir.join("w/link")));
    let root = dir.join("other/file");
    let root = format!("/proc/self/root{}", root.display());
    tell("no file: by its root", std::fs::read(root));
    tell("no file: written", std::fs::write(dir.join("r/new"), ""));
    tell("no file: made", std::fs::write(dir.join("other/new"), ""));
    tell("no file: cut", std::fs::OpenOptions::new().write(true).open(dir.join("other/file")));
    tell("no file: removed", std::fs::remove_file(dir.join("other/file")));
    tell("no file: linked", std::fs::hard_link(dir.join("other/file"), dir.join("w/mine")));
    tell("no file: moved", std::fs::rename(dir.join("w/file"), dir.join("other/moved")));
    tell("no file: environment", std::fs::read(format!("/proc/{parent}/environ")));
    tell("no file: memory", std::fs::File::open(format!("/proc/{parent}/mem")));
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    tell("no: rights of a file", std::fs::set_permissions(dir.join("other/file"), mode));
    tell("no: owner of a file", std::os::unix::fs::chown(dir.join("other/file"), None, Some(1)));
    let (at, fifo) = (i64::from(libc::AT_FDCWD), i64::from(libc::S_IFIFO));
    tell("no: a pipe with a name", call(libc::SYS_mknodat, [at, 0, fifo, 0]));
}

fn processes_of_others(parent: i32) {
    use std::os::fd::AsRawFd as _;
    let (parent, signal) = (i64::from(parent), i64::from(libc::SIGURG));
    tell("no: a signal", call(libc::SYS_kill, [parent, signal, 0, 0]));
    tell("no: to a thread", call(libc::SYS_tgkill, [parent, parent, signal, 0]));
    tell("no: queued", call(libc::SYS_rt_sigqueueinfo, [parent, signal, 0, 0]));
    tell("no: a pidfd", call(libc::SYS_pidfd_open, [parent, 0, 0, 0]));
    let pair = std::os::unix::net::UnixStream::pair().unwrap();
    let (fd, own) = (i64::from(pair.0.as_raw_fd()), i64::from(libc::F_SETOWN));
    tell("no: by a file", call(libc::SYS_fcntl, [fd, own, parent, 0]));
    tell("no: traced", call(libc::SYS_ptrace, [i64::from(libc::PTRACE_ATTACH), parent, 0, 0]));
    tell("no: memory", call(libc::SYS_process_vm_readv, [parent, 0, 0, 0]));
    tell("no: niceness", call(libc::SYS_setpriority, [0, parent, 1, 0]));
    tell("no: limits", call(libc::SYS_prlimit64, [parent, 7, 0, 0]));
}

fn own_status() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    for name in ["NoNewPrivs", "CapEff", "CapPrm", "Seccomp"] {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        println!("{TRIED}{name}: {}", line.trim_start_matches(':').trim());
    }
}

#[test]
fn who_is_inside_reaches_what_the_engine_needs_and_nothing_else() {
    let scene = scene();
    let tried = confined("tries", scene.path());
    if tried["filter"] != "ok" {
        eprintln!("skipped: the kernel has no filters of system calls");
        return;
    }
    let refused = [libc::EPERM, libc::EACCES, libc::EXDEV].map(|errno| errno.to_string());
    let (of_files, of_all): (Vec<_>, Vec<_>) = tried
        .iter()
        .filter(|(name, _)| name.starts_with("no"))
        .partition(|(name, _)| name.starts_with("no file"));
    for (name, went) in &of_all {
        assert!(refused.contains(went), "{name}: {went}");
    }
    for (name, went) in &of_files {
        assert!(tried["landlock"] != "ok" || refused.contains(went), "{name}: {went}");
    }
    let own = ["said", "signal", "landlock", "filter", "NoNewPrivs", "CapEff", "CapPrm", "Seccomp"];
    let needed: Vec<_> = tried
        .iter()
        .filter(|(name, _)| !name.starts_with("no") && !own.contains(&name.as_str()))
        .collect();
    for (name, went) in &needed {
        assert_eq!(went.as_str(), "ok", "{name}");
    }
    assert_eq!((needed.len(), of_files.len(), of_all.len()), (14, 16, 26), "{tried:#?}");
    assert_eq!((tried["NoNewPrivs"].as_str(), tried["Seccomp"].as_str()), ("1", "2"));
    for set in ["CapEff", "CapPrm"] {
        // That of low ports at most.
        assert!(["0000000000000000", "0000000000000400"].contains(&tried[set].as_str()));
    }
    assert!(tried["said"].ends_with("system calls filtered"), "{}", tried["said"]);
}

#[test]
fn it_can_still_abort() {
    let scene = scene();
    let tried = confined("abort", scene.path());
    assert_eq!(tried["signal"], libc::SIGABRT.to_string());
}

#[test]
fn what_cannot_be_confined_whole_is_not_confined_at_all() {
    let scene = scene();
    let told = confined("absent", scene.path());
    assert_eq!((told.len(), told["signal"].as_str()), (2, "0"), "{told:?}");
    // The threads of tests.
    let here = confine(&Confinement::default());
    assert!(matches!(here, Err(ConfineError::Threads(2..))), "{here:?}");
}
