//! A table of stock command lines, with what they say of a development agent of stock Nomad, where `NOMAD_BIN` names
//! the program: an agent of ours does the same, but for what the table names with its reason.
//!
//! ```text
//!   commands.txt ─► rows ─┬─► played against `nomad agent -dev` ─► meets the row: the table is right
//!                         └─► played against `ostler agent` ─────► meets it as well, or what is said of ours
//! ```

mod rows;
mod side;

use rows::{Row, Wanted};
use side::{Said, Side};

use crate::support::agent_process::{AgentProcess, Home};
use crate::support::nomad::{NomadServer, free_port};

/// Of so many commands so many are to work, or of more as large a part.
const WORK_MIN: (usize, usize) = (95, 103);

/// What a row says of ours.
fn of_ours(row: &Row) -> &Wanted {
    row.differs.as_ref().map_or(&row.wanted, |differs| &differs.ours)
}

async fn played(side: &Side, rows: &[Row], wanted: fn(&Row) -> &Wanted) -> Vec<Said> {
    let mut all = Vec::new();
    for row in rows {
        all.push(side.play(row, wanted(row)).await);
    }
    all
}

/// Leave what was said in a directory, for people who compare.
fn kept(name: &str, rows: &[Row], said: &[Said]) {
    let Some(dir) = std::env::var_os("OSTLER_COMMANDS_TO") else { return };
    let text: Vec<_> = rows
        .iter()
        .zip(said)
        .map(|(row, said)| format!("$ {}\n{:?}\n{}", row.command, said.code, said.text))
        .collect();
    std::fs::write(std::path::Path::new(&dir).join(name), text.join("\n")).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_stock_command_line_does_with_a_development_agent_it_does_with_ours() {
    let Some(mut server) = NomadServer::start_dev().await else { return };
    let rows = rows::table();
    let http = free_port();
    let agent =
        AgentProcess::start_in(Home::new(), &["--http", &format!("127.0.0.1:{http}")]).await;
    let (ours, theirs) = (Side::new(http), Side::new(server.http));
    let (ours, theirs) =
        tokio::join!(played(&ours, &rows, of_ours), played(&theirs, &rows, |row| &row.wanted));
    drop(agent);
    server.end().await;
    kept("ours", &rows, &ours);
    kept("theirs", &rows, &theirs);

    let (mut wrong, mut work) = (Vec::new(), 0);
    for ((row, ours), theirs) in rows.iter().zip(&ours).zip(&theirs) {
        let mut met = true;
        for (of, said) in [("ours", ours), ("a development agent", theirs)] {
            if !said.lacks.is_empty() {
                met = false;
                let Said { code, text, lacks } = said;
                wrong.push(format!("$ {}\n{of} ({code:?}) lacks {lacks:?}:\n{text}", row.command));
            }
        }
        match &row.differs {
            None => work += usize::from(met),
            Some(differs) => println!("differs: {}: {}", row.command, differs.reason),
        }
    }
    println!("{work} of {} stock commands do what they do with a development agent", rows.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let (least, of) = WORK_MIN;
    assert!(rows.len() >= of && work * of >= least * rows.len(), "{work} of {}", rows.len());
}
