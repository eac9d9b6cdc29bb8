//! Tests of settings from outside: flags, variables and files become values with their origins.

use super::value::{
    Bytes, ClientAddress, DenyStatus, HeaderProfile, Headers, ListenerChoice, Networks, Reset, SettingValue,
};
use super::*;
use std::fs;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// The flags, variables and config file of a test.
struct SettingsFixture {
    folder: TempDir,
    arguments: Vec<String>,
    environment: Environment,
}

impl SettingsFixture {
    fn new(arguments: &[&str], variables: &[(&str, &str)]) -> SettingsFixture {
        let variables =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        SettingsFixture {
            folder: tempfile::tempdir().unwrap(),
            arguments: arguments.iter().map(ToString::to_string).collect(),
            environment: Environment { variables, cores: 6, stderr_is_terminal: true },
        }
    }

    /// Adds a config file that `--config` names.
    fn with_file(mut self, text: &str) -> SettingsFixture {
        self.arguments.extend(["--config".to_owned(), self.write(text)]);
        self
    }

    fn write(&self, text: &str) -> String {
        let path = self.folder.path().join("ratekeeper.yaml");
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn resolve(&self) -> Result<Resolved> {
        let command = Settings::add_to(Command::new("serve"));
        let arguments = [&["serve".to_owned()], self.arguments.as_slice()].concat();
        Settings::resolve(&command.try_get_matches_from(arguments).unwrap(), &self.environment)
    }

    #[track_caller]
    fn settings(&self) -> Settings {
        self.resolve().unwrap_or_else(|diagnostics| panic!("{diagnostics}")).settings
    }

    /// The report of the errors. The directory of the config file is left out.
    #[track_caller]
    fn report(&self) -> String {
        let report = self.resolve().expect_err("the settings should be rejected").to_string();
        report.replace(&format!("{}/", self.folder.path().display()), "")
    }

    /// Asserts that the settings are rejected with exactly these errors, each given by its beginning, and after ` … `
    /// its end. The source lines that are shown with errors in the config file are left out.
    #[track_caller]
    fn assert_rejected(&self, expected: &[&str]) {
        let report = self.report();
        let is_source = |line: &&str| line.starts_with(' ');
        let diagnostics: Vec<_> = report.lines().filter(|line| !is_source(line)).collect();
        assert_eq!(diagnostics.len(), expected.len(), "{report}");
        for (diagnostic, expected) in diagnostics.iter().zip(expected) {
            let (begin, end) = expected.split_once(" … ").unwrap_or((expected, ""));
            assert!(
                diagnostic.starts_with(begin) && diagnostic.ends_with(end),
                "{diagnostic:?} is not {expected:?}"
            );
        }
    }
}

fn flags(arguments: &[&str]) -> SettingsFixture {
    SettingsFixture::new(arguments, &[])
}

fn file(text: &str) -> SettingsFixture {
    SettingsFixture::new(&[], &[]).with_file(text)
}

/// The settings that were set explicitly, and their origins.
fn explicit(resolved: &Resolved) -> impl Iterator<Item = (&'static str, &SettingOrigin)> {
    let values =
        TABLE.iter().filter_map(|setting| Some((setting.name, &resolved.values.get(setting.name)?.origin)));
    values.filter(|(_, origin)| **origin != SettingOrigin::Default)
}

fn at(address: &str) -> Listen {
    Listen::At(address.to_owned())
}

#[test]
fn defaults_apply_without_any_input() {
    let settings = flags(&[]).settings();
    assert_eq!(
        settings,
        Settings {
            rules: None,
            emergency_limit: None,
            http: at("127.0.0.1:8080"),
            grpc: at("127.0.0.1:8081"),
            resp: at("127.0.0.1:6380"),
            admin: at("127.0.0.1:9090"),
            admin_token_file: None,
            admin_token: None,
            api_token_file: None,
            api_token: None,
            max_connections: 10_000,
            forward_key: "ip".parse().unwrap(),
            max_unfinished_bodies: Bytes(64 << 20),
            allowed_origins: crate::settings::value::Origins(ratekeeper_server::AllowedOrigins::default()),
            trusted_proxies: Networks(vec!["127.0.0.0/8".parse().unwrap(), "::1".parse().unwrap()]),
            client_address: ClientAddress::XForwardedFor,
            tls_cert: None,
            tls_key: None,
            tls_client_ca: None,
            tls_on: vec![
                ListenerChoice::Http,
                ListenerChoice::Grpc,
                ListenerChoice::Resp,
                ListenerChoice::Admin
            ],
            store: SettingValue::read("memory", &(0..=0)).unwrap(),
            store_timeout: Duration::from_millis(50),
            on_store_failure: ratekeeper::FailureMode::Local,
            max_keys: 10_000_000,
            headers: Headers(vec![HeaderProfile::XRateLimit, HeaderProfile::Ietf]),
            reset: Reset::Epoch,
            deny_status: DenyStatus::Ok,
            max_batch: 10_000,
            max_body: Bytes(4 << 20),
            workers: 6,
            drain_delay: Duration::ZERO,
            drain_timeout: Duration::from_secs(10),
            log: SettingValue::read("info", &(0..=0)).unwrap(),
            log_format: LogFormat::Text,
            denial_log: 10,
        }
    );
    assert_eq!(settings.tls_files(), None);
    let mut without_terminal = flags(&[]);
    without_terminal.environment.stderr_is_terminal = false;
    assert_eq!(without_terminal.settings().log_format, LogFormat::Json);
}

#[test]
fn flags_override_the_environment_which_overrides_the_file() {
    let text = "max_keys: 1\nmax_batch: 1\nmax_connections: 1\n";
    let variables = [("RATEKEEPER_MAX_KEYS", "2"), ("RATEKEEPER_MAX_BATCH", "2")];
    let case = SettingsFixture::new(&["--max-keys", "3"], &variables).with_file(text);
    let resolved = case.resolve().unwrap();
    let settings = &resolved.settings;
    assert_eq!((settings.max_keys, settings.max_batch, settings.max_connections), (3, 2, 1));
    assert_eq!(settings.denial_log, 10);
    let set: Vec<_> = explicit(&resolved).map(|(name, origin)| format!("{name} {origin}")).collect();
    let path = case.folder.path().display();
    assert_eq!(
        set,
        [
            format!("max_connections {path}/ratekeeper.yaml:3"),
            "max_keys --max-keys".to_owned(),
            "max_batch RATEKEEPER_MAX_BATCH".to_owned()
        ]
    );
}

#[test]
fn every_setting_can_be_set_by_flag_variable_and_file() {
    let values = [
        ("rules", "limits.yaml"),
        ("emergency_limit", "10/s burst 20"),
        ("http", "[::1]:0"),
        ("grpc", "[::1]:0"),
        ("resp", "off"),
        ("admin", "off"),
        ("admin_token_file", "token"),
        ("api_token_file", "another"),
        ("allowed_origins", "https://admin.example,http://localhost:3000"),
        ("max_connections", "7"),
        ("forward_key", "header:x-api-key,query:api_key,ip"),
        ("trusted_proxies", "10.0.0.0/8,2001:db8::/32"),
        ("client_address", "x-real-ip"),
        ("tls_cert", "a.crt"),
        ("tls_key", "a.key"),
        ("tls_client_ca", "ca.crt"),
        ("tls_on", "admin"),
        ("store", "redis+cluster://a:7000,b:7000"),
        ("store_timeout", "20ms"),
        ("on_store_failure", "closed"),
        ("max_keys", "1_000"),
        ("headers", "draft-6,x-ratelimit"),
        ("reset", "delta"),
        ("deny_status", "429"),
        ("max_batch", "9"),
        ("max_body", "64KiB"),
        ("max_unfinished_bodies", "128MiB"),
        ("workers", "3"),
        ("drain_delay", "500ms"),
        ("drain_timeout", "2min"),
        ("log", "warn,ratekeeper=debug"),
        ("log_format", "json"),
        ("denial_log", "0"),
    ];
    let named: Vec<_> = values.iter().map(|(name, _)| *name).collect();
    let table = TABLE.iter().filter(|setting| !setting.shape.is_secret);
    assert_eq!(named, table.map(|setting| setting.name).collect::<Vec<_>>(), "a setting is missing here");

    let arguments: Vec<_> =
        values.iter().map(|(name, value)| format!("--{}={value}", name.replace('_', "-"))).collect();
    let from_flags = flags(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).settings();
    let variables: Vec<_> =
        TABLE.iter().filter(|setting| !setting.shape.is_secret).map(Setting::variable).collect();
    let variables: Vec<_> =
        variables.iter().zip(values).map(|(name, (_, value))| (name.as_str(), value)).collect();
    let from_variables = SettingsFixture::new(&[], &variables).settings();
    let lines: String = values.iter().map(|(name, value)| format!("{name}: \"{value}\"\n")).collect();
    let from_file = file(&lines).settings();
    assert_eq!(from_flags, from_variables);
    assert_eq!(from_flags, from_file);

    assert_ne!(from_flags, flags(&[]).settings());
    assert_eq!(from_file.http, at("[::1]:0"));
    assert_eq!(from_file.admin, Listen::Off);
    assert_eq!(from_file.emergency_limit, Some("10/s burst 20".parse().unwrap()));
    assert_eq!(from_file.headers, Headers(vec![HeaderProfile::Draft6, HeaderProfile::XRateLimit]));
    assert_eq!((from_file.deny_status, from_file.max_body), (DenyStatus::TooManyRequests, Bytes(65536)));
    assert_eq!(from_file.drain_delay, Duration::from_millis(500));
    assert_eq!(from_file.drain_timeout, Duration::from_secs(120));
    let files = from_file.tls_files().unwrap();
    assert_eq!((files.cert.as_path(), files.key.as_path()), (Path::new("a.crt"), Path::new("a.key")));
    assert_eq!(files.client_ca.as_deref(), Some(Path::new("ca.crt")));
}

#[test]
fn file_values_are_taken_as_written() {
    let settings = file(
        "
# Comments and blank lines are ignored.
rules: 1.10
http: off
max_keys: 1000
headers: [ietf, draft-6]   # a list
tls_on:
  - http
max_body: 2 MiB
tls_cert: a.crt
tls_key: 'a.key'
emergency_limit: 3 per 90s
",
    )
    .settings();
    assert_eq!(settings.rules.as_deref(), Some(Path::new("1.10")));
    assert_eq!((settings.http, settings.max_keys), (Listen::Off, 1000));
    assert_eq!(settings.headers, Headers(vec![HeaderProfile::Ietf, HeaderProfile::Draft6]));
    assert_eq!(settings.tls_on, [ListenerChoice::Http]);
    assert_eq!(settings.max_body, Bytes(2 << 20));
    for text in ["", "# nothing\n", "---\n", "{}"] {
        assert_eq!(file(text).settings(), flags(&[]).settings(), "{text:?}");
    }
    assert_eq!(file("trusted_proxies: none").settings().trusted_proxies, Networks(vec![]));
    let proxies = file("trusted_proxies: [10.0.0.0/8, '::1']\nforward_key: [header:x-key, ip]").settings();
    assert_eq!(proxies.trusted_proxies.0.len(), 2);
    assert_eq!(proxies.forward_key.to_string(), "header:x-key,ip");
    assert_eq!(file("headers: none").settings().headers, Headers(vec![]));
    assert_eq!(file("headers: ietf, x-ratelimit,ietf").settings().headers.0.len(), 2);
}

#[test]
fn repeated_flags_form_one_list() {
    let settings = flags(&["--headers", "ietf", "--headers=draft-6,x-ratelimit"]).settings();
    assert_eq!(settings.headers.0, [HeaderProfile::Ietf, HeaderProfile::Draft6, HeaderProfile::XRateLimit]);
}

#[test]
fn the_config_file_can_be_set_by_a_variable() {
    let mut case = SettingsFixture::new(&[], &[]);
    let path = case.write("workers: 4\n");
    case.environment.variables.insert("RATEKEEPER_CONFIG".to_owned(), path);
    assert_eq!(case.settings().workers, 4);
    case.environment.variables.insert("RATEKEEPER_CONFIG".to_owned(), "no/such.yaml".to_owned());
    case.assert_rejected(&[
        "cannot read the config file no/such.yaml: No such file … (from RATEKEEPER_CONFIG)",
    ]);
    flags(&["--config", "no/such.yaml"])
        .assert_rejected(&["cannot read the config file no/such.yaml: … (from --config)"]);
    let long = "#".repeat(2 << 20);
    file(&long)
        .assert_rejected(&["cannot read the config file ratekeeper.yaml: it has more than 1048576 bytes … "]);
}

#[test]
fn an_empty_variable_counts_as_unset() {
    let settings =
        SettingsFixture::new(&[], &[("RATEKEEPER_RULES", ""), ("RATEKEEPER_CONFIG", ""), ("RUST_LOG", "")])
            .settings();
    assert_eq!(settings, flags(&[]).settings());
    flags(&["--rules", ""]).assert_rejected(&["empty file name: write one, … (from --rules)"]);
}

#[test]
fn rust_log_overrides_everything_else() {
    let variables = [("RUST_LOG", "hyper=trace"), ("RATEKEEPER_LOG", "warn")];
    let resolved = SettingsFixture::new(&["--log", "error"], &variables).resolve().unwrap();
    assert_eq!(resolved.settings.log, SettingValue::read("hyper=trace", &(0..=0)).unwrap());
    assert!(resolved.print().contains("\nlog: \"hyper=trace\"  # RUST_LOG\n"), "{}", resolved.print());
}

#[test]
fn all_errors_are_reported_at_once_with_their_origins() {
    let variables = [("RATEKEEPER_MAX_KEYS", "lots"), ("RATEKEEPER_DRAIN_DELAY", "soon")];
    let arguments = ["--http", "nowhere", "--store", "reddis://h:6379/0", "--tls-cert", "a.crt"];
    let text = "
htpp: 127.0.0.1:80
max-body: 1MiB
quota: 5/s
admin_token: 0123456789abcdef
deny_status: 500
headers: [ietf, draft-8]
emergency_limit: 5 apples
log: inof
";
    SettingsFixture::new(&arguments, &variables).with_file(text).assert_rejected(&[
        "ratekeeper.yaml:2:1: error: unknown field \"htpp\": did you mean http?",
        "ratekeeper.yaml:3:1: error: unknown field \"max-body\": did you mean max_body?",
        "ratekeeper.yaml:4:1: error: unknown field \"quota\": the fields are rules, emergency_limit, http, … ",
        "ratekeeper.yaml:5:1: error: admin_token is a secret and not allowed in a config file: … RATEKEEPER_ADMIN_TOKEN",
        "ratekeeper.yaml:6:14: error: invalid value \"500\": write one of 200, 429, 403",
        "ratekeeper.yaml:7:10: error: invalid value \"draft-8\": write one of x-ratelimit, ietf, draft-7, draft-6, none",
        "ratekeeper.yaml:8:18: error: cannot read \"5 apples\" as a quota: write … ",
        "ratekeeper.yaml:9:6: error: unknown log level \"inof\": write info, or inof=trace for all logs of that target",
        "cannot listen on nowhere: write an address and a port, like 127.0.0.1:8080, … (from --http)",
        "unknown store \"reddis\": did you mean redis … and memory (from --store)",
        "invalid number \"lots\": write a whole number from 1 to 1000000000; … (from RATEKEEPER_MAX_KEYS)",
        "invalid duration \"soon\": write 0ns to 3600s with a unit, like … (from RATEKEEPER_DRAIN_DELAY)",
        "tls_cert requires tls_key: add the key of the certificate (from --tls-cert)",
    ]);
}

#[test]
fn errors_in_the_shape_of_a_file_name_the_position() {
    for (text, expected) in [
        (
            "http: [a, b]",
            "ratekeeper.yaml:1:7: error: expected a single value: write it without brackets or fields",
        ),
        ("x: 1\nhttp: {port: 80}", "ratekeeper.yaml:2:7: error: expected a single value: write"),
        ("\nhttp:\n", "ratekeeper.yaml:2:1: error: missing value: write one, or remove the field"),
        ("http: a:1\nhttp: b:2\n", "ratekeeper.yaml:2:1: error: duplicate field \"http\": keep one of them"),
        ("- http", "ratekeeper.yaml:1:1: error: expected fields: write them like http: 127.0.0.1:8080"),
        ("just text", "ratekeeper.yaml:1:1: error: expected fields: write"),
        (
            "headers: {a: b}",
            "ratekeeper.yaml:1:10: error: expected a list, not a map: write it like [one, another]",
        ),
        ("headers: [[a]]", "ratekeeper.yaml:1:11: error: expected a single value: write"),
        ("http: \"a", "ratekeeper.yaml:1:7: error: a quote is opened here and never closed: close it"),
        (
            "http: a:1\n---\nhttp: b:1\n",
            "ratekeeper.yaml:2:1: error: the file must be a single YAML document",
        ),
        ("\tx: 1", "ratekeeper.yaml:1:2: error: unknown field \"x\": the fields are rules,"),
    ] {
        let report = file(text).report();
        let last = report.lines().rfind(|line| line.starts_with("ratekeeper.yaml")).unwrap();
        assert!(last.starts_with(expected), "{report:?} does not begin with {expected:?}");
    }
}

#[test]
fn errors_in_a_file_are_shown_like_those_of_a_compiler() {
    let report = file("http: off\nmax_batch: 0\n").report();
    let expected = "\
ratekeeper.yaml:2:12: error: invalid number \"0\": write a whole number from 1 to 1000000; _ may separate digits
    2 | max_batch: 0
      |            ^";
    assert_eq!(report, expected);
    assert_eq!(file("x: &a http\nlog: *b\nlog_format: *a").report().matches("error: ").count(), 3);
}

#[test]
fn invalid_values_are_rejected() {
    for (argument, expected) in [
        ("--workers=0", "invalid number \"0\": write a whole number from 1 to 1024"),
        ("--workers=1025", "invalid number \"1025\": write"),
        ("--max-keys=-1", "invalid number \"-1\": write"),
        ("--max-keys=1e6", "invalid number \"1e6\": write"),
        ("--max-keys=_1", "invalid number \"_1\": write"),
        ("--max-keys=99999999999999999999", "invalid number \"99999999999999999999\": write"),
        ("--max-batch=4294967297", "invalid number \"4294967297\": write"),
        ("--max-body=4MB", "invalid size \"4MB\": write 1024 to 1073741824 bytes, like 65536, 64KiB or 4MiB"),
        ("--max-body=1023", "invalid size \"1023\": write"),
        ("--max-body=99999999999999GiB", "invalid size \"99999999999999GiB\": write"),
        ("--max-body=MiB", "invalid size \"MiB\": write"),
        ("--drain-delay=5", "invalid duration \"5\": write 0ns to 3600s with a unit"),
        ("--drain-delay=2h", "invalid duration \"2h\": write"),
        ("--drain-delay=-5s", "invalid duration \"-5s\": write"),
        ("--drain-timeout=99999999999999999h", "invalid duration \"99999999999999999h\": write"),
        ("--http=:8080", "cannot listen on :8080: write an address and a port"),
        ("--http=8080", "cannot listen on 8080: write"),
        ("--http=::1:8080", "cannot listen on ::1:8080: write"),
        ("--http=http://a:1", "cannot listen on http://a:1: write"),
        ("--http=a:65536", "cannot listen on a:65536: write"),
        ("--http=", "cannot listen on : write"),
        ("--store=disk", "invalid store \"disk\": write memory"),
        ("--store-timeout=2s", "invalid duration \"2s\": write 1ms to 1s with a unit"),
        ("--store-timeout=0", "invalid duration \"0\": write 1ms to 1s"),
        ("--on-store-failure=panic", "invalid value \"panic\": write one of local, open, closed"),
        ("--headers=ietf,draft-7", "ietf and draft-7 both set the RateLimit header: keep one"),
        ("--headers=ietf,none", "none can't be combined with other profiles: remove"),
        ("--headers=", "invalid value \"\": write one of x-ratelimit"),
        ("--log=ratekeeper=loud", "invalid log filter \"ratekeeper=loud\": "),
        ("--log-format=xml", "invalid value \"xml\": write one of text, json"),
        (
            "--forward-key=x-api-key",
            "\"x-api-key\" is not a key source: write header:NAME, query:NAME or ip, with commas between them",
        ),
        ("--forward-key=", "\"\" is not a key source: write"),
        (
            "--trusted-proxies=10.0.0.0/8,proxy",
            "invalid network \"proxy\": write an address or a network, like 10.0.0.0/8, 192.0.2.7 or \
             2001:db8::/32, or none",
        ),
        (
            "--trusted-proxies=10.0.0.1/8",
            "invalid network \"10.0.0.1/8\": the address has bits set after its prefix",
        ),
        ("--client-address=via", "invalid value \"via\": write one of x-forwarded-for, x-real-ip"),
        ("--emergency-limit=0/s", "an amount of 0 would deny everything: write"),
    ] {
        flags(&[argument]).assert_rejected(&[expected]);
    }
    flags(&["--tls-on=ftp", "--tls-cert=a", "--tls-key=b"])
        .assert_rejected(&["invalid value \"ftp\": write one of http, grpc, resp, admin"]);
    assert_eq!(flags(&["--drain-delay", "0", "--http", "localhost:80"]).settings().http, at("localhost:80"));
}

#[test]
fn contradictory_settings_are_rejected() {
    flags(&["--http=off", "--grpc=off", "--resp=off", "--admin=off"])
        .assert_rejected(&["http, grpc, resp and admin are all off: … (from --admin)"]);
    flags(&["--http=127.0.0.1:9090"])
        .assert_rejected(&["http and admin can't listen on the same address: … (from --http)"]);
    assert!(flags(&["--http=127.0.0.1:0", "--admin=127.0.0.1:0"]).resolve().is_ok());
    flags(&["--tls-key=a"])
        .assert_rejected(&["tls_key requires tls_cert: add the certificate of the key (from --tls-key)"]);
    flags(&["--tls-client-ca=a", "--tls-on=http"]).assert_rejected(&[
        "this setting requires TLS: add tls_cert and tls_key (from --tls-client-ca)",
        "this setting requires TLS: add tls_cert and tls_key (from --tls-on)",
    ]);
    let variables = [("RATEKEEPER_ADMIN_TOKEN", "0123456789abcdef")];
    SettingsFixture::new(&["--admin-token-file=a"], &variables)
        .assert_rejected(&["admin_token_file is set too, but … (from RATEKEEPER_ADMIN_TOKEN)"]);
}

#[test]
fn a_secret_comes_only_from_the_environment_and_is_never_shown() {
    let resolved =
        SettingsFixture::new(&[], &[("RATEKEEPER_ADMIN_TOKEN", "0123456789abcdef")]).resolve().unwrap();
    assert_eq!(resolved.settings.admin_token.as_ref().unwrap().expose(), "0123456789abcdef");
    assert!(!format!("{:?}", resolved.settings).contains("0123456789abcdef"));
    let printed = resolved.print();
    assert!(printed.contains("\n# admin_token: (hidden)  # RATEKEEPER_ADMIN_TOKEN\n"), "{printed}");
    assert!(!printed.contains("0123456789abcdef"));
    let command = Settings::add_to(Command::new("serve"));
    assert!(command.try_get_matches_from(["serve", "--admin-token", "x"]).is_err());
}

#[test]
fn the_password_of_a_store_is_never_shown() {
    let variables = [("RATEKEEPER_STORE", "redis://me:hunter2@h:6379/0")];
    let resolved = SettingsFixture::new(&[], &variables).resolve().unwrap();
    let printed = resolved.print();
    let line = "store: \"redis://me:***@h:6379/0\"  # RATEKEEPER_STORE, password hidden";
    assert!(printed.lines().any(|printed| printed == line), "{line} is not in\n{printed}");
    assert!(!printed.contains("hunter2") && !format!("{:?}", resolved.settings).contains("hunter2"));
    // Reading the printed settings back is an error, rather than connecting without a password.
    file(&printed).assert_rejected(&["ratekeeper.yaml: … RATEKEEPER_STORE"]);
    // Neither is one in a file with errors.
    for text in [
        "admin_token: hunter2",
        "store: redis://me:hunter2",
        "store: me:hunter2@h",
        "stoer: redis://me:hunter2@h",
        "store:\n  redis://me:hunter2",
        "{store: redis://me:hunter2, max_keys: 0}",
        "store: redis://me:hunter2: x",
        "store: \"redis://me:hunter2",
        "admin_token:\n  - hunter2@\n  -hunter2",
        "log: info\radmin_token: hunter2",
        "hunter2",
    ] {
        let report = file(text).report();
        assert!(report.contains("ratekeeper.yaml:") && !report.contains("hunter2"), "{text:?}: {report}");
    }
}

#[test]
fn unknown_variables_are_warned_of() {
    let variables = [
        ("RATEKEEPER_MAX_KEY", "5"),
        ("RATEKEEPER_COLOUR", "red"),
        ("RATEKEEPER_SERVER", "http://a"),
        ("RATEKEEPER_ADMIN_TOKEN", "0123456789abcdef"),
        // Variables that Kubernetes sets for services called ratekeeper and ratekeeper-admin.
        ("RATEKEEPER_PORT", "tcp://10.0.0.1:8080"),
        ("RATEKEEPER_SERVICE_HOST", "10.0.0.1"),
        ("RATEKEEPER_SERVICE_PORT_HTTP", "8080"),
        ("RATEKEEPER_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ("RATEKEEPER_ADMIN_SERVICE_PORT", "9090"),
        ("OTHER", "x"),
    ];
    let resolved = SettingsFixture::new(&[], &variables).resolve().unwrap();
    assert_eq!(
        resolved.warnings,
        [
            "unknown environment variable RATEKEEPER_COLOUR: it is ignored",
            "unknown environment variable RATEKEEPER_MAX_KEY: did you mean RATEKEEPER_MAX_KEYS?",
        ]
    );
}

#[test]
fn printed_settings_name_their_origins_and_can_be_read_back() {
    let arguments = [
        "--rules=limits #1: \"a\"/\\é.yaml",
        "--headers=ietf,draft-6",
        "--http=[::1]:0",
        "--tls-cert=true",
        "--tls-key=- x",
        "--drain-delay=1min",
    ];
    let case = SettingsFixture::new(
        &arguments,
        &[("RATEKEEPER_EMERGENCY_LIMIT", "10/s burst 5"), ("RATEKEEPER_LOG", "warn,a=info")],
    )
    .with_file("\nworkers: 2\n");
    let resolved = case.resolve().unwrap();
    let printed = resolved.print();
    for line in [
        "rules: \"limits #1: \\\"a\\\"/\\\\é.yaml\"  # --rules",
        "emergency_limit: \"10/s burst 5\"  # RATEKEEPER_EMERGENCY_LIMIT",
        "http: \"[::1]:0\"  # --http",
        "admin: 127.0.0.1:9090  # default",
        "# admin_token_file:  # default: a token generated at each start and printed once",
        "headers: [ietf, draft-6]  # --headers",
        "# tls_client_ca:  # default: no client certificate required",
        "tls_cert: \"true\"  # --tls-cert",
        "max_body: 4MiB  # default",
        &format!("workers: 2  # {}/ratekeeper.yaml:2", case.folder.path().display()),
        "log_format: text  # default: json if stderr is not a terminal",
    ] {
        assert!(printed.lines().any(|printed| printed == line), "{line} is not in\n{printed}");
    }
    let again = file(&printed);
    assert_eq!(again.settings(), resolved.settings);
    let set = again.resolve().unwrap();
    assert!(explicit(&set).all(|(_, origin)| matches!(origin, SettingOrigin::File(..))));
    let defaults = flags(&[]).resolve().unwrap();
    assert_eq!(file(&defaults.print()).settings(), defaults.settings);
}

#[test]
fn every_setting_has_a_flag_and_a_hidden_variable() {
    let command = Settings::add_to(Command::new("serve"));
    for setting in TABLE.iter().filter(|setting| !setting.shape.is_secret) {
        let arg = command.get_arguments().find(|arg| arg.get_id() == setting.name).unwrap();
        assert_eq!(arg.get_long(), Some(setting.flag().as_str()));
        assert_eq!(arg.get_env(), Some(OsStr::new(&setting.variable())));
        assert!(arg.get_help().is_some() && arg.is_hide_env_values_set(), "{}", setting.name);
    }
}

#[test]
fn help_shows_defaults_and_choices() {
    let help = Settings::add_to(Command::new("serve")).render_long_help().to_string();
    for expected in [
        "--max-keys <N>",
        "[default: 10_000_000]",
        "[env: RATEKEEPER_MAX_KEYS]",
        "[default: number of cores]",
        "- draft-7:",
        "TLS:",
    ] {
        assert!(help.contains(expected), "{expected} is not in\n{help}");
    }
}
