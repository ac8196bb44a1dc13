#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;

use super::*;

/// A terminal of 80 columns without colours.
fn eighty() -> TerminalInfo {
    TerminalInfo { stdout: true, columns: Some(80), ..TerminalInfo::default() }
}

fn texts<const N: usize>(row: [&str; N]) -> [String; N] {
    row.map(str::to_owned)
}

#[test]
fn what_fits_is_one_line_a_row() {
    let rows = [texts(["web", "running", "2"]), texts(["a-longer-name", "dead", ""])];
    assert_eq!(
        table(["ID", "STATUS", "RUNNING"], rows, &eighty()),
        "ID             STATUS   RUNNING\nweb            running  2\na-longer-name  dead\n"
    );
}

#[test]
fn a_long_text_is_broken_between_words_and_the_other_columns_stay_whole() {
    let why = "group web waits: cpu: 90000 MHz are wanted, 4000 MHz are free on this node now, \
               and memory: 90000 MiB are wanted";
    let rows = [texts(["web", "service", "pending", why]), texts(["b", "batch", "dead", "over"])];
    assert_eq!(
        table(["ID", "TYPE", "STATUS", "WAITS FOR"], rows, &eighty()),
        "\
ID   TYPE     STATUS   WAITS FOR
web  service  pending  group web waits: cpu: 90000 MHz are wanted, 4000 MHz are
                       free on this node now, and memory: 90000 MiB are wanted
b    batch    dead     over
"
    );
}

#[test]
fn columns_that_have_no_room_stand_below_their_row_with_their_heading() {
    let digest = "0123456789ab";
    let rows = [
        texts([
            "device-nvidia",
            "device",
            "1.0.0",
            "loaded",
            "files(/sys/devices)",
            digest,
            "/usr/lib/ostler/plugins/device-nvidia.wasm",
        ]),
        texts(["exec", "driver", "1.0.0", "loaded", "spawn", digest, "built-in"]),
    ];
    let header = ["NAME", "KIND", "VERSION", "STATUS", "MAY", "DIGEST", "SOURCE"];
    assert_eq!(
        table(header, rows, &eighty()),
        "\
NAME           KIND    VERSION  STATUS  MAY                  DIGEST
device-nvidia  device  1.0.0    loaded  files(/sys/devices)  0123456789ab
    SOURCE  /usr/lib/ostler/plugins/device-nvidia.wasm
exec           driver  1.0.0    loaded  spawn                0123456789ab
    SOURCE  built-in
"
    );
}

#[test]
fn what_names_a_row_and_how_it_is_stays_beside_it_and_details_go_below() {
    let row = texts([
        "0f01c0de",
        "production-web.frontend[0]",
        "",
        "3",
        "run",
        "running",
        "healthy",
        "0",
        "5m02s ago",
        "4m58s ago",
        "Tasks are running",
    ]);
    let header = [
        "ID",
        "NAME",
        "NAMESPACE",
        "VERSION",
        "DESIRED",
        "STATUS",
        "HEALTH",
        "RESTARTS",
        "CREATED",
        "MODIFIED",
        "WHY",
    ];
    assert_eq!(
        table(header, [row], &eighty()),
        "\
ID        NAME                        VERSION  DESIRED  STATUS   HEALTH
0f01c0de  production-web.frontend[0]  3        run      running  healthy
    RESTARTS  0
    CREATED   5m02s ago
    MODIFIED  4m58s ago
    WHY       Tasks are running
"
    );
}

#[test]
fn a_number_stays_with_its_unit() {
    let long = "what the plugin said the last time was far too long for its column";
    let row = texts(["exec", "running", "226.5 ms", "2.3 KiB", long]);
    let text = table(["NAME", "STATE", "P99", "IN", "LAST ERROR"], [row], &eighty());
    assert_eq!(
        text,
        "\
NAME  STATE    P99       IN       LAST ERROR
exec  running  226.5 ms  2.3 KiB  what the plugin said the last time was far too
                                  long for its column
"
    );
}

#[test]
fn wide_characters_count_as_wide_as_they_are() {
    let text = table(["A", "B"], [texts(["日本", "x"]), texts(["ab", "y"])], &eighty());
    assert_eq!(text, "A     B\n日本  x\nab    y\n");
}

#[test]
fn a_table_that_is_not_on_a_terminal_has_one_plain_line_per_row() {
    let long = "x".repeat(300);
    let rows = [["a".to_owned(), long.clone()], ["b\x1b[2J\nc".to_owned(), String::new()]];
    let text = table(["NAME", "REASON"], rows, &TerminalInfo::default());
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert_eq!(lines.first().map(|l| l.split_whitespace().count()), Some(2));
    assert!(lines.iter().any(|line| line.ends_with(&long)), "{text}");
    assert!(!text.contains('\x1b') && !text.contains("  \n"), "{text}");
    assert!(text.contains("b\\u{1b}[2J; c"), "{text}");
}

proptest! {
    /// Whatever stands in it and however narrow the screen: every word is there, whole, and a line
    /// is only longer than the screen for a word that is.
    #[test]
    fn no_word_is_broken_and_no_line_is_longer_than_it_must_be(
        rows in proptest::collection::vec(proptest::array::uniform4("([a-z]{1,30} ?){0,6}"), 0..6),
        columns in 20_u16..120,
    ) {
        let terminal = TerminalInfo { columns: Some(columns), ..eighty() };
        let header = ["NAME", "STATUS", "LAST ERROR", ""];
        let text = table(header, rows.clone(), &terminal);
        let words: Vec<&str> = text.split_whitespace().collect();
        for word in rows.iter().flatten().flat_map(|cell| cell.split_whitespace()) {
            prop_assert!(words.contains(&word), "{word} in\n{text}");
        }
        let screen = usize::from(columns);
        for line in text.lines().filter(|line| line.width() > screen) {
            let longest = line.split_whitespace().map(|word| word.width()).max().unwrap_or(0);
            let outside = INDENT + "LAST ERROR".len() + GAP;
            prop_assert!(longest + outside > screen, "{line}");
        }
    }
}
