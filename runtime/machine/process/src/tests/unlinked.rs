//! What tasks hold of files that have no name.

use std::os::unix::fs::MetadataExt as _;

use super::*;

in_both_modes!(a_file_that_a_task_or_its_child_holds_without_a_name_is_its_allocations);

async fn a_file_that_a_task_or_its_child_holds_without_a_name_is_its_allocations(mode: Mode) {
    let (host, dir) = (mode.host(), tempfile::tempdir().unwrap());
    let mut case =
        sh("(exec 3>x; rm x; head -c 1048576 /dev/zero >&3; echo held; sleep 1000) & wait");
    case.spec.cwd = dir.path().to_owned();
    let run = &case.spec.run_id;
    let id = start(&host, &case.spec).await.unwrap();
    until("it holds the file", || case.stdout.text().contains("held")).await;
    let device = dir.path().metadata().unwrap().dev();
    let held = |run: &RunId| host.held_files(run.alloc().unwrap(), device, &|| false);
    let found = held(run);
    assert!(found.bytes >= 1 << 20 && !found.incomplete, "{found:?}");
    assert_eq!(found.apparent_bytes, 1 << 20);
    assert_eq!(held(&run_id(1)), UnlinkedFiles::default(), "of another allocation");
    host.kill_run(run);
    host.wait(run, &id).await;
    let gone = held(run);
    assert_eq!(gone.bytes, 0, "{gone:?}");
    host.forget_run(run);
}
