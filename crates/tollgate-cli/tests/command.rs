//! The command line from outside: settings as the process finds them, completions, and the manual.

#![expect(clippy::unwrap_used, reason = "what a test's helpers unwrap fails the test, as it should")]

mod support;

use std::fs;
use std::process::Command;
use support::{Told, told, tollgate};

fn output(command: &mut Command) -> (i32, String, String) {
    let Told { code, stdout, stderr } = told(command);
    (code.unwrap(), stdout, stderr)
}

#[test]
fn printed_settings_come_from_flags_variables_and_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tollgate.yaml");
    fs::write(&path, "http: off\nmax_batch: 5\n").unwrap();
    let path = path.to_str().unwrap();
    let mut command = tollgate(&["serve", "--print-config", "--max-keys", "1_000"]);
    command.env("TOLLGATE_CONFIG", path).env("TOLLGATE_HTTP", "127.0.0.1:1").env("TOLLGATE_MAX_KEY", "5");
    let (code, stdout, stderr) = output(&mut command);
    assert_eq!(
        (code, stderr.as_str()),
        (0, "warning: unknown variable TOLLGATE_MAX_KEY: did you mean TOLLGATE_MAX_KEYS?\n")
    );
    for line in [
        "http: 127.0.0.1:1  # TOLLGATE_HTTP",
        "max_keys: 1_000  # --max-keys",
        &format!("max_batch: 5  # {path}:2"),
        "log_format: json  # default: json if stderr is no terminal",
    ] {
        assert!(stdout.lines().any(|printed| printed == line), "{line} is not in\n{stdout}");
    }
    fs::write(path, &stdout).unwrap();
    let (code, again, _) = output(&mut tollgate(&["serve", "--print-config", "--config", path]));
    assert!(code == 0 && again.contains(&format!("max_keys: 1_000  # {path}:")), "{again}");
}

#[test]
fn settings_that_cannot_be_used_are_all_told_of() {
    let mut command = tollgate(&["serve", "--workers", "many"]);
    command.env("TOLLGATE_STORE", "disk").env("TOLLGATE_ADMIN", "9090");
    assert_eq!(
        output(&mut command),
        (
            1,
            String::new(),
            "error: cannot listen on 9090: write an address and a port, like 127.0.0.1:8080, [::1]:8080 or 0.0.0.0:8080, \
             or off (from TOLLGATE_ADMIN)\n\
             \"disk\" is no store: write memory, or a URL like redis://127.0.0.1:6379 (from TOLLGATE_STORE)\n\
             \"many\" is no number from 1 to 1024: write one in digits, with _ between them if you like (from --workers)\n"
                .to_owned()
        )
    );
}

#[test]
fn every_shell_gets_a_script_that_knows_the_settings() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let (code, script, stderr) = output(&mut tollgate(&["completions", shell]));
        assert_eq!((code, stderr.as_str()), (0, ""), "{shell}");
        // Fish writes options without their dashes; the last two shells are not told of values.
        let words = ["max-keys", "print-config", "completions", "draft-7"];
        let known = if ["powershell", "elvish"].contains(&shell) { &words[..3] } else { &words[..] };
        for word in known {
            assert!(script.contains(word), "{word} is not in the script for {shell}");
        }
    }
    let (code, _, stderr) = output(&mut tollgate(&["completions", "cmd"]));
    assert!(
        code == 2 && stderr.contains("[possible values: bash, elvish, fish, powershell, zsh]"),
        "{stderr}"
    );
}

#[test]
fn the_script_for_bash_completes() {
    let (_, script, _) = output(&mut tollgate(&["completions", "bash"]));
    let ask = "COMP_WORDS=(tollgate serve --max-k); COMP_CWORD=2; COMPREPLY=(); _tollgate tollgate --max-k serve; \
               echo \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    let (code, stdout, stderr) = output(bash.args(["--norc", "-c", &format!("{script}\n{ask}")]));
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "--max-keys\n", ""));
}

#[test]
fn the_manual_is_one_page_or_one_for_each_subcommand() {
    let (code, page, _) = output(&mut tollgate(&["man"]));
    assert_eq!(code, 0);
    for said in [
        ".TH tollgate 1",
        ".SH \"TOLLGATE SERVE\"",
        ".SH \"TOLLGATE CHECK\"",
        ".SH \"TOLLGATE RULES\"",
        ".SH \"TOLLGATE RULES EXPLAIN\"",
        ".SS ENCRYPTION",
        "TOLLGATE_MAX_KEYS",
        "tollgate completions",
    ] {
        assert!(page.contains(said), "{said} is not in\n{page}");
    }
    assert!(!page.contains("EXTRA") && !page.contains("(1)"), "{page}");

    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("man1");
    let (code, stdout, stderr) = output(&mut tollgate(&["man", "--dir", inner.to_str().unwrap()]));
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "", ""));
    let mut names: Vec<_> = fs::read_dir(&inner)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let expected = [
        "tollgate-check.1",
        "tollgate-completions.1",
        "tollgate-man.1",
        "tollgate-rules-check.1",
        "tollgate-rules-diff.1",
        "tollgate-rules-explain.1",
        "tollgate-rules-import.1",
        "tollgate-rules-schema.1",
        "tollgate-rules.1",
        "tollgate-serve.1",
        "tollgate.1",
    ];
    assert_eq!(names, expected);
    let serve = fs::read_to_string(inner.join("tollgate-serve.1")).unwrap();
    assert!(serve.contains(".SH ENCRYPTION") && serve.contains(".SH NOTES"), "{serve}");
}
