//! What a machine is made of: a kernel, a first file system with busybox and our libraries, a disk with
//! our binary, and a disk for the data whose plugins are compiled already.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use super::vm::Machine;
use crate::support::{OSTLER, PATIENCE};

/// Modules of the kernel that the disks need.
const MODULES: [&str; 6] = [
    "virtio/virtio_ring",
    "virtio/virtio",
    "virtio/virtio_pci_legacy_dev",
    "virtio/virtio_pci_modern_dev",
    "virtio/virtio_pci",
    "block/virtio_blk",
];
/// Room for the data of an agent; and for its binary, stripped, beside the file system's own needs.
const DATA_DISK_BYTES: u64 = 256 << 20;
const TOOLS_SLACK_BYTES: u64 = 64 << 20;
/// How long the disk of another binary is kept: a test process may still use it.
const KEPT_LONGEST: Duration = Duration::from_secs(4 * 3_600);
/// Only the drivers that the tests of this folder use: each is compiled by an emulated processor.
const CONFIG: &str = include_str!("agent.hcl");

/// Programs and images of this test process.
pub struct Rig {
    pub kernel: PathBuf,
    pub initramfs: PathBuf,
    pub tools: PathBuf,
    /// Data disk of an agent that has compiled its plugins; to be copied.
    pub warm: PathBuf,
    /// Where machines keep their sockets and disks.
    pub dir: TempDir,
}

/// Where a package of Debian puts it, or where the gate unpacks it.
fn first_of(candidates: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    candidates.into_iter().find(|path| path.exists())
}

fn unpacked() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("../machine")
}

/// A kernel and the directory of its modules.
fn kernel() -> Option<(PathBuf, PathBuf)> {
    [unpacked(), PathBuf::from("/")].into_iter().find_map(|root| {
        let entries = fs::read_dir(root.join("boot")).ok()?.flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut versions: Vec<String> =
            names.filter_map(|name| Some(name.strip_prefix("vmlinuz-")?.to_owned())).collect();
        versions.sort();
        let found = versions.into_iter().rev().find_map(|version| {
            let modules = root.join("lib/modules").join(&version).join("kernel/drivers");
            let has = |module: &&str| modules.join(format!("{module}.ko")).exists();
            MODULES.iter().all(has).then_some((version, modules))
        });
        found.map(|(version, modules)| (root.join(format!("boot/vmlinuz-{version}")), modules))
    })
}

/// Run a program of the test's machine to its end.
async fn tool(program: &str, args: &[&str]) -> Result<String, String> {
    let run = tokio::process::Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let ended = ostler_model::clock::timeout(PATIENCE, run).await;
    let output = ended.ok_or_else(|| format!("{program} does not end"))?;
    let output = output.map_err(|error| format!("{program} is not installed ({error})"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// A sparse file.
pub fn blank(path: &Path, bytes: u64) {
    fs::File::create(path).unwrap().set_len(bytes).unwrap();
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

impl Rig {
    /// Everything there is to be had; or what is missing on this machine.
    pub async fn assemble() -> Result<Self, String> {
        tool("qemu-system-x86_64", &["--version"]).await?;
        let (kernel, modules) = kernel().ok_or(
            "no kernel with its modules: Debian package linux-image-cloud-amd64, unpacked by .ci/machine",
        )?;
        let busybox = first_of([unpacked().join("bin/busybox"), "/bin/busybox".into()])
            .ok_or("no busybox: Debian package busybox-static")?;
        let dir = tempfile::Builder::new().prefix("ostler-machine-").tempdir().unwrap();
        let initramfs = dir.path().join("initramfs.cpio");
        first_files(dir.path(), &busybox, &modules, &initramfs).await?;
        let tools = binary_disk(dir.path()).await?;
        let warm = warm_path();
        let rig = Self { kernel, initramfs, tools, warm, dir };
        if !rig.warm.exists() {
            rig.warm_up().await?;
        }
        Ok(rig)
    }

    /// A data disk with an agent that has compiled its plugins: an emulated processor takes long.
    async fn warm_up(&self) -> Result<(), String> {
        let disk = self.dir.path().join("warm.img");
        blank(&disk, DATA_DISK_BYTES);
        tool("mke2fs", &["-q", "-t", "ext4", "-F", text(&disk)]).await?;
        let mut machine = Machine::boot(self, &disk, None).await;
        machine.start_agent().await;
        // By the file: `plugin list` would compile them once more, for itself.
        let loaded = "ls /data/agent/code/*.code || { sleep 1; false; }";
        machine.until_within(5 * PATIENCE, "the drivers are compiled", loaded).await;
        machine.stop_agent().await;
        machine.ok("rm -rf /data/agent/state* /data/agent/allocs; mkdir /data/marks").await;
        machine.off().await;
        keep(&disk, &self.warm);
        Ok(())
    }
}

/// By what decides whether compiled code can be used: an old one would be slow, not wrong.
fn warm_path() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut digest = Sha256::new();
    for file in ["../Cargo.lock", "plugins/engine/src/config.rs"] {
        digest.update(fs::read(root.join(file)).unwrap());
    }
    for plugin in ostler_guests::builtin_plugins() {
        digest.update(plugin.bytes);
    }
    digest.update(CONFIG);
    let name: String = digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    kept_dir().join(format!("warm-{name}.img"))
}

async fn first_files(
    dir: &Path,
    busybox: &Path,
    modules: &Path,
    into: &Path,
) -> Result<(), String> {
    let root = dir.join("root");
    for name in ["bin", "dev", "etc", "lib", "modules", "root"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    fs::copy(busybox, root.join("bin/busybox")).unwrap();
    for module in MODULES {
        let file = format!("{module}.ko");
        let name = Path::new(&file).file_name().unwrap();
        fs::copy(modules.join(&file), root.join("modules").join(name)).unwrap();
    }
    for library in
        tool("ldd", &[OSTLER]).await?.split_whitespace().filter(|word| word.starts_with('/'))
    {
        let target = root.join(library.trim_start_matches('/'));
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(library, target).unwrap();
    }
    for (name, text) in [
        ("etc/passwd", "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"),
        ("etc/group", "root:x:0:\nnogroup:x:65534:\n"),
        ("etc/agent.hcl", CONFIG),
        ("init", include_str!("init.sh")),
    ] {
        fs::write(root.join(name), text).unwrap();
    }
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755)).unwrap();
    let pack = format!(
        "cd {} && find . | bin/busybox cpio -o -H newc > {}",
        root.display(),
        into.display()
    );
    tool("sh", &["-c", &pack]).await.map(drop)
}

/// A disk with the binary, without what only a debugger reads. Kept until there is another binary.
async fn binary_disk(dir: &Path) -> Result<PathBuf, String> {
    let meta = fs::metadata(OSTLER).unwrap();
    let made = meta.modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
    let name = format!("tools-{}-{}", meta.len(), made.as_nanos());
    let kept = kept_dir().join(format!("{name}.img"));
    if kept.exists() {
        return Ok(kept);
    }
    for old in fs::read_dir(kept_dir()).into_iter().flatten().flatten() {
        let age = old.metadata().and_then(|meta| meta.modified()).map(|made| made.elapsed());
        let unused = age.is_ok_and(|age| age.is_ok_and(|age| age > KEPT_LONGEST));
        if unused && old.file_name().to_string_lossy().starts_with("tools-") {
            let _gone_already = fs::remove_file(old.path());
        }
    }
    let bin = dir.join("tools");
    fs::create_dir_all(&bin).unwrap();
    let binary = bin.join("ostler");
    if tool("strip", &["-o", text(&binary), OSTLER]).await.is_err() {
        fs::copy(OSTLER, &binary).unwrap();
    }
    let image = dir.join(&name);
    blank(&image, fs::metadata(&binary).unwrap().len() + TOOLS_SLACK_BYTES);
    let args = ["-q", "-t", "ext4", "-O", "^has_journal", "-F", "-d", text(&bin), text(&image)];
    tool("mke2fs", &args).await?;
    keep(&image, &kept);
    Ok(kept)
}

/// What is kept beside the build, from one test process to the next.
fn kept_dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("machine-kept")
}

/// Put a file there, whole or not at all.
fn keep(from: &Path, to: &Path) {
    fs::create_dir_all(kept_dir()).unwrap();
    let part = to.with_extension(std::process::id().to_string());
    fs::copy(from, &part).unwrap();
    fs::rename(&part, to).unwrap();
}

/// The end of a file, for messages.
pub fn tail(path: &Path) -> String {
    let mut text = Vec::new();
    let _missing = fs::File::open(path).and_then(|mut file| file.read_to_end(&mut text));
    String::from_utf8_lossy(&text[text.len().saturating_sub(4_000)..]).into_owned()
}
