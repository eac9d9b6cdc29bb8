//! The command line of the real binary: settings from all sources, completions, and man pages.

use crate::support::{CommandOutput, ratekeeper, run};
use std::fs;
use std::process::Command;

fn output(command: &mut Command) -> (i32, String, String) {
    let CommandOutput { code, stdout, stderr } = run(command);
    (code.unwrap(), stdout, stderr)
}

#[test]
fn printed_settings_come_from_flags_variables_and_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ratekeeper.yaml");
    fs::write(&path, "http: off\nmax_batch: 5\n").unwrap();
    let path = path.to_str().unwrap();
    let mut command = ratekeeper(&["serve", "--print-config", "--max-keys", "1_000"]);
    command
        .env("RATEKEEPER_CONFIG", path)
        .env("RATEKEEPER_HTTP", "127.0.0.1:1")
        .env("RATEKEEPER_MAX_KEY", "5");
    let (code, stdout, stderr) = output(&mut command);
    assert_eq!(
        (code, stderr.as_str()),
        (0, "warning: unknown environment variable RATEKEEPER_MAX_KEY: did you mean RATEKEEPER_MAX_KEYS?\n")
    );
    for line in [
        "http: 127.0.0.1:1  # RATEKEEPER_HTTP",
        "max_keys: 1_000  # --max-keys",
        &format!("max_batch: 5  # {path}:2"),
        "log_format: json  # default: json if stderr is not a terminal",
    ] {
        assert!(stdout.lines().any(|printed| printed == line), "{line} is not in\n{stdout}");
    }
    fs::write(path, &stdout).unwrap();
    let (code, again, _) = output(&mut ratekeeper(&["serve", "--print-config", "--config", path]));
    assert!(code == 0 && again.contains(&format!("max_keys: 1_000  # {path}:")), "{again}");
}

#[test]
fn all_invalid_settings_are_reported_at_once() {
    let mut command = ratekeeper(&["serve", "--workers", "many"]);
    command.env("RATEKEEPER_STORE", "disk").env("RATEKEEPER_ADMIN", "9090");
    assert_eq!(
        output(&mut command),
        (
            1,
            String::new(),
            "error: cannot listen on 9090: write an address and a port, like 127.0.0.1:8080, [::1]:8080 or 0.0.0.0:8080, \
             or off (from RATEKEEPER_ADMIN)\n\
             invalid store \"disk\": write memory, or a URL like redis://127.0.0.1:6379 (from RATEKEEPER_STORE)\n\
             invalid number \"many\": write a whole number from 1 to 1024; _ may separate digits (from --workers)\n"
                .to_owned()
        )
    );
}

#[test]
fn completion_scripts_of_every_shell_contain_the_settings() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let (code, script, stderr) = output(&mut ratekeeper(&["completions", shell]));
        assert_eq!((code, stderr.as_str()), (0, ""), "{shell}");
        // Fish writes options without dashes; the scripts for the last two shells contain no values.
        let words = ["max-keys", "print-config", "completions", "draft-7"];
        let known = if ["powershell", "elvish"].contains(&shell) { &words[..3] } else { &words[..] };
        for word in known {
            assert!(script.contains(word), "{word} is not in the script for {shell}");
        }
    }
    let (code, _, stderr) = output(&mut ratekeeper(&["completions", "cmd"]));
    assert!(
        code == 2 && stderr.contains("[possible values: bash, elvish, fish, powershell, zsh]"),
        "{stderr}"
    );
}

#[test]
fn the_bash_script_completes_an_option() {
    let (_, script, _) = output(&mut ratekeeper(&["completions", "bash"]));
    let completion = "COMP_WORDS=(ratekeeper serve --max-k); COMP_CWORD=2; COMPREPLY=(); _ratekeeper ratekeeper --max-k serve; \
               echo \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    let (code, stdout, stderr) = output(bash.args(["--norc", "-c", &format!("{script}\n{completion}")]));
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "--max-keys\n", ""));
}

#[test]
fn the_manual_is_one_page_or_one_per_subcommand() {
    let (code, page, _) = output(&mut ratekeeper(&["man"]));
    assert_eq!(code, 0);
    for text in [
        ".TH ratekeeper 1",
        ".SH \"RATEKEEPER SERVE\"",
        ".SH \"RATEKEEPER CHECK\"",
        ".SH \"RATEKEEPER RULES\"",
        ".SH \"RATEKEEPER RULES EXPLAIN\"",
        ".SS TLS",
        "RATEKEEPER_MAX_KEYS",
        "ratekeeper completions",
    ] {
        assert!(page.contains(text), "{text} is not in\n{page}");
    }
    assert!(!page.contains("EXTRA") && !page.contains("(1)"), "{page}");

    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("man1");
    let (code, stdout, stderr) = output(&mut ratekeeper(&["man", "--dir", inner.to_str().unwrap()]));
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "", ""));
    let mut names: Vec<_> = fs::read_dir(&inner)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let expected = [
        "ratekeeper-check.1",
        "ratekeeper-completions.1",
        "ratekeeper-man.1",
        "ratekeeper-rules-check.1",
        "ratekeeper-rules-diff.1",
        "ratekeeper-rules-explain.1",
        "ratekeeper-rules-import.1",
        "ratekeeper-rules-schema.1",
        "ratekeeper-rules.1",
        "ratekeeper-serve.1",
        "ratekeeper.1",
    ];
    assert_eq!(names, expected);
    let serve = fs::read_to_string(inner.join("ratekeeper-serve.1")).unwrap();
    assert!(serve.contains(".SH TLS") && serve.contains(".SH NOTES"), "{serve}");
}
