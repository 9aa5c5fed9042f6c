//! Tests of receivers that work, fail, hang, and answer nonsense.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;

use super::*;

const POOL: &str = "/srv/pool.hf";

fn notice(kind: &'static str, text: &str) -> Notice {
    Notice { kind, text: text.to_owned() }
}

fn start(all: &[DeliveryMethod]) -> (NoticeReceivers, Arc<NoticeCounts>) {
    let receiver = |way: &DeliveryMethod| NoticeReceiver { way: way.clone(), events: Vec::new() };
    let all: Vec<_> = all.iter().map(receiver).collect();
    let counts = Arc::new(NoticeCounts::default());
    (NoticeReceivers::start(&all, &counts, None).expect("threads can be started"), counts)
}

fn shell(script: &str) -> DeliveryMethod {
    DeliveryMethod::Command(["sh", "-c", script].map(str::to_owned).to_vec())
}

fn counted(counts: &NoticeCounts) -> [u64; 3] {
    [&counts.told, &counts.failed, &counts.dropped].map(|it| it.load(Ordering::Relaxed))
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Starts an HTTP server that answers one request with `answer`. Its thread returns the request.
fn server(answer: &'static [u8]) -> (WebhookUrl, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it listens").port();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("somebody comes");
        let mut lines = BufReader::new(stream.try_clone().expect("it can be"));
        let (mut head, mut length) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            let from = head.len();
            lines.read_line(&mut head).expect("it is text");
            let line = head[from..].to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse().expect("a number");
            }
        }
        let mut body = vec![0; length];
        lines.read_exact(&mut body).expect("it is as long as it says");
        stream.write_all(answer).expect("somebody reads");
        head + &String::from_utf8(body).expect("it is JSON")
    });
    let address = WebhookUrl::parse(&format!("http://127.0.0.1:{port}/hook?x=1"));
    (address.expect("it is one"), serving)
}

/// Goal: each kind of receiver delivers any text, and runs nothing of it as a command. Mail goes by
/// the line that a configuration with `mail` is refused with.
#[test]
fn commands_mails_and_webhooks_are_told() {
    let work = std::env::temp_dir().join(format!("holdfast-notify-{}", std::process::id()));
    std::fs::create_dir_all(&work).expect("the name is new");
    let (file, letter) = (work.join("file"), work.join("letter"));
    let script = format!(
        "echo $HOLDFAST_POOL $HOLDFAST_EVENT \"$HOLDFAST_TEXT\" > {0}.new; mv {0}.new {0}",
        file.display()
    );
    let sendmail = work.join("sendmail");
    let program =
        format!("#!/bin/sh\n(echo \"$@\"; cat) > {0}.new; mv {0}.new {0}\n", letter.display());
    std::fs::write(&sendmail, program).expect("there is room");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&sendmail, mode).expect("it is ours");
    let to = ["ops@example.org".to_owned(), "$(touch x)'@example.org".to_owned()];
    let line = mail_line(&to, sendmail.to_str());
    let mut line: std::collections::HashMap<String, Vec<String>> =
        toml::from_str(&line).expect("it can be pasted");
    let mail = DeliveryMethod::Command(line.remove("command").expect("it is a command"));
    let (address, serving) = server(b"HTTP/1.1 204 No Content\r\n\r\n");
    let (receivers, counts) = start(&[shell(&script), mail, DeliveryMethod::Webhook(address)]);
    receivers.tell(POOL, &notice("space", "a; rm -rf $HOME \"\nSubject: x"));
    until("not all are told", || counted(&counts) == [3, 0, 0]);
    let told = std::fs::read_to_string(&file).expect("it was run");
    assert_eq!(told, "/srv/pool.hf space a; rm -rf $HOME \"\nSubject: x\n");
    let letter = std::fs::read_to_string(&letter).expect("it was run");
    let expected = "-i ops@example.org $(touch x)'@example.org\nSubject: holdfast: space\n\n\
                    /srv/pool.hf: a; rm -rf $HOME \"\nSubject: x\n";
    assert_eq!(letter, expected);
    let sent = serving.join().expect("it was asked");
    let (head, body) = sent.split_once("\r\n\r\n").expect("it has a head");
    assert!(head.starts_with("POST /hook?x=1 HTTP/1.1\r\n"), "{head}");
    assert!(head.to_ascii_lowercase().contains("\r\nhost: 127.0.0.1:"), "{head}");
    let body: Value = serde_json::from_str(body).expect("it is JSON");
    assert_eq!((&body["event"], &body["pool"]), (&json!("space"), &json!(POOL)));
    std::fs::remove_dir_all(&work).expect("it is ours");
}

/// Goal: a receiver that hangs delays neither others nor the sender. Its queue is bounded, and the
/// next notice has the number of dropped ones.
#[test]
fn a_receiver_that_hangs_harms_nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it listens").port();
    let hangs = WebhookUrl::parse(&format!("http://127.0.0.1:{port}/")).expect("it is one");
    let file = std::env::temp_dir().join(format!("holdfast-hangs-{}", std::process::id()));
    let sleeps = shell(&format!("sleep 600 & echo $! > {}; wait", file.display()));
    let (receivers, counts) = start(&[DeliveryMethod::Webhook(hangs), sleeps, shell("true")]);
    let begun = Instant::now();
    let rounds = QUEUE_MAX + 20;
    for round in 0..rounds {
        receivers.tell(POOL, &notice("job", &round.to_string()));
        let told = u64::try_from(round + 1).expect("few");
        until("it is not told", || counts.told.load(Ordering::Relaxed) == told);
    }
    assert!(begun.elapsed() < RECEIVER_TIME, "somebody has waited for who hangs");
    let [_, failed, dropped] = counted(&counts);
    // Besides those in the queue, one notice is being delivered.
    assert_eq!((failed, dropped), (0, 2 * 19));
    let came = receivers.test(POOL, &notice("test", "t")).wait(Duration::from_millis(500));
    let is_silent = |at: usize| {
        let error: Option<&String> = came[at].error.as_ref();
        !came[at].ok && error.is_some_and(|it| it.contains("does not answer"))
    };
    assert!(is_silent(0) && is_silent(1), "{came:?}");
    assert_eq!((came[2].ok, &came[2].error), (true, &None));
    drop((receivers, listener));
    let started = std::fs::read_to_string(&file).expect("the command has begun");
    let state = format!("/proc/{}/stat", started.trim());
    // Ended, and whoever has taken it over may not have noticed.
    let has_ended = || std::fs::read_to_string(&state).map_or(true, |state| state.contains(") Z"));
    until("what the command has started is left", has_ended);
    std::fs::remove_file(file).expect("it is ours");
}

/// Goal: failures are counted and reported with causes. A receiver gets only the kinds that it
/// chose.
#[test]
fn what_fails_is_counted_and_events_are_chosen() {
    let (refuses, one) = server(b"HTTP/1.1 503 Busy\r\n\r\n");
    let (nonsense, two) = server(&[b'x'; 1024]);
    let gone = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        listener.local_addr().expect("it listens").port()
    };
    let gone = WebhookUrl::parse(&format!("http://127.0.0.1:{gone}")).expect("it is one");
    let ways = [
        DeliveryMethod::Webhook(refuses),
        DeliveryMethod::Webhook(nonsense),
        DeliveryMethod::Webhook(gone),
        shell("exit 3"),
        DeliveryMethod::Command(vec!["/nonexistent".to_owned()]),
    ];
    let (receivers, counts) = start(&ways);
    let came = receivers.test(POOL, &notice("test", "t")).wait(Duration::from_secs(20));
    for (came, why) in
        came.iter().zip(["503", "protocol: ", "refused", "exit status: 3", "No such"])
    {
        let error = came.error.as_deref().unwrap_or_default();
        assert!(!came.ok && error.contains(why), "{came:?}: not {why}");
    }
    assert_eq!(counted(&counts), [0, 5, 0]);
    drop((one.join(), two.join()));

    let chosen = NoticeReceiver { way: shell("true"), events: vec!["space".to_owned()] };
    let counts = Arc::new(NoticeCounts::default());
    let receivers =
        NoticeReceivers::start(&[chosen], &counts, None).expect("a thread can be started");
    receivers.tell(POOL, &notice("job", "not this"));
    receivers.tell(POOL, &notice("space", "this"));
    until("it is not told", || counted(&counts)[0] == 1);
    let came = receivers.test(POOL, &notice("test", "t")).wait(Duration::from_secs(20));
    assert!(came[0].ok && came[0].error.is_none(), "{came:?}");
    assert_eq!(counted(&counts), [2, 0, 0]);
}

#[test]
fn addresses_that_are_none_are_refused() {
    for (text, why) in [
        ("ftp://a/", "no address"),
        ("http:///x", "invalid format"),
        ("/x", "names no host"),
        ("http://a:99999/", "no such port"),
        ("http://me:secret@a/", "not sent"),
        ("http://me:secret@a:80/", "not sent"),
        ("http://a/x y", "invalid uri character"),
        ("http://a/\r\nX: y", "invalid uri character"),
    ] {
        let refused = WebhookUrl::parse(text).expect_err(text);
        assert!(refused.contains(why), "{text}: {refused}");
    }
    for (text, shown) in [
        ("http://a.example", "http://a.example/"),
        ("https://a.example:443/T0/secret", "https://a.example:443/..."),
        ("http://[::1]:80/", "http://[::1]:80/"),
        ("https://[::1]:444/x?y", "https://[::1]:444/..."),
    ] {
        assert_eq!(WebhookUrl::parse(text).expect("it is one").shown(), shown);
    }
}

/// Goal: a reload loses no notice. Queued ones are delivered, and a running program is not killed.
/// Method: a slow program and three notices.
#[test]
fn what_waits_is_told_when_others_take_the_place() {
    let (before, counts) = start(&[shell("sleep 0.2")]);
    for _ in 0..3 {
        before.tell(POOL, &notice("member", "it is gone"));
    }
    let after = NoticeReceivers::start(&[], &counts, Some(&before)).expect("it can be started");
    before.retire();
    until("all are told", || counted(&counts) == [3, 0, 0]);
    drop(after);
}

fn testing(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/hub").join(name)
}

fn by_tls(host: &str) -> (WebhookUrl, std::thread::JoinHandle<Option<String>>) {
    use tokio_rustls::rustls::pki_types::pem::PemObject as _;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

    let certificate = CertificateDer::from_pem_file(testing("http/testing/cert.pem"));
    let key = PrivateKeyDer::from_pem_file(testing("http/testing/key.pem")).expect("it is one");
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.expect("it is one")], key)
        .expect("they fit");
    let listener = TcpListener::bind((host, 0)).expect("a port is free");
    let port = listener.local_addr().expect("it listens").port();
    let serving = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("somebody comes");
        let server = ServerConnection::new(std::sync::Arc::new(config)).expect("it is whole");
        let mut stream = StreamOwned::new(server, stream);
        let mut came = Vec::new();
        while !came.ends_with(b"}") {
            let mut some = [0; 1024];
            let count = stream.read(&mut some).ok().filter(|count| *count > 0)?;
            came.extend_from_slice(&some[..count]);
        }
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").expect("somebody reads");
        Some(String::from_utf8(came).expect("it is text"))
    });
    let address = WebhookUrl::parse(&format!("https://{host}:{port}/hook"));
    (address.expect("it is one"), serving)
}

/// Goal: over TLS a notice goes only to a trusted server. Method: certificates that are trusted,
/// untrusted or for another name, a missing or wrong file of trusted ones, a silent server.
#[test]
fn a_webhook_by_tls_is_told_if_its_certificate_is_trusted() {
    const TIME: Duration = Duration::from_secs(10);
    let body = "{\"event\":\"test\"}";
    let (own, other) = (testing("http/testing/cert.pem"), testing("receivers/testing/other.pem"));
    let (address, serving) = by_tls("127.0.0.1");
    assert_eq!(web::post(&address, body, Some(&own), TIME), Ok(()));
    let came = serving.join().expect("it ends").expect("it was told");
    assert!(came.starts_with("POST /hook HTTP/1.1\r\n") && came.ends_with(body), "{came}");
    for (host, trusted, why) in [
        ("127.0.0.1", Some(&other), "UnknownIssuer"),
        ("127.0.0.2", Some(&own), "not valid for name"),
    ] {
        let (address, serving) = by_tls(host);
        let refused = web::post(&address, body, trusted.map(|it| &**it), TIME);
        let refused = refused.expect_err("it is not trusted");
        assert!(refused.contains(why) && refused.contains(&address.shown()), "{refused}");
        assert_eq!(serving.join().expect("it ends"), None, "told to a stranger");
    }
    let plain = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = plain.local_addr().expect("it listens").port();
    let address = WebhookUrl::parse(&format!("https://127.0.0.1:{port}/")).expect("it is one");
    let refused = web::post(&address, body, None, TIME).expect_err("nobody is trusted");
    assert!(refused.contains("SSL_CERT_FILE"), "{refused}");
    let key = testing("http/testing/key.pem");
    let refused = web::post(&address, body, Some(&key), TIME).expect_err("a key is none");
    assert!(refused.contains("no certificate to trust"), "{refused}");
    let begun = Instant::now();
    let late = web::post(&address, body, Some(&own), Duration::from_millis(200));
    assert!(late.expect_err("it says nothing").contains("timeout"));
    assert!(begun.elapsed() < TIME, "{:?}", begun.elapsed());
}
