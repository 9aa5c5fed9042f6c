use crate::facts::export_spec;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use front::nfs::{ExportRules, HandleKey, Service};
use serde_json::{Value, json};

use super::*;
use crate::backend::{Backend, OpenPool};
use crate::hub::handle_keys::ExportedFilesets;
use crate::hub::{Nfs, ServedPool, StateDirectory};
use crate::wiring::EngineBackend;
use control::{ExportSource, Request as Control};

/// A server of a pool in memory, with a fileset and an export whose names must stay secret.
struct TestHttpServer {
    http: Option<HttpServer>,
    hub: Arc<Hub>,
    pool: Arc<dyn OpenPool>,
    directory: PathBuf,
    token: String,
    id: String,
}

impl TestHttpServer {
    fn new(name: &str, options: &HttpOptions) -> TestHttpServer {
        let directory =
            std::env::temp_dir().join(format!("holdfast-http-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).expect("it can be made");
        let pool = EngineBackend.open_in_memory(64 << 20).expect("there is memory");
        let service = Arc::new(Service::new(HandleKey([7; 16]), 2049));
        let nfs = Nfs::new(
            service,
            "127.0.0.1:2049".parse().expect("it is one"),
            ExportedFilesets::forgetful(),
        );
        let served = ServedPool::new("/srv/secret.hf".into(), Arc::clone(&pool));
        let id = served.id.clone();
        let state = StateDirectory::find(Some(&directory.join("state"))).expect("it is given");
        let hub = Arc::new(Hub::new(vec![served], Some(nfs), state));
        let create = Control::FilesetCreate {
            name: "secret".to_owned(),
            properties: control::Properties::default(),
        };
        hub.control(0, &create, Peer::own()).expect("there is room");
        let spec = export_spec(&ExportRules::new("/secret"), Some("secret".to_owned()));
        hub.export(0, &spec, ExportSource::CommandLine).expect("it is there");
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let socket = directory.join("http");
        let http = HttpServer::start(&hub, options, Some(listener), &socket).expect("it starts");
        let token = std::fs::read_to_string(Token::path_of(&hub.state)).expect("it was made");
        let token = token.trim().to_owned();
        TestHttpServer { http: Some(http), hub, pool, directory, token, id }
    }

    fn address(&self) -> SocketAddr {
        self.http.as_ref().and_then(|http| http.address).expect("it listens")
    }

    /// Sends a request with these header lines and the right Host. Returns the status and the rest
    /// of the answer.
    fn ask(&self, head: &str, body: &str) -> (u16, String) {
        let host = format!("Host: {}\r\n", self.address());
        self.ask_raw(&format!(
            "{}\r\n{host}{}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            head.lines().next().unwrap_or_default(),
            head.lines().skip(1).map(|line| format!("{line}\r\n")).collect::<String>(),
            body.len()
        ))
    }

    fn ask_raw(&self, text: &str) -> (u16, String) {
        let socket = TcpStream::connect(self.address()).expect("it listens");
        exchange(socket, text)
    }

    fn get(&self, path: &str) -> (u16, Value) {
        let head = format!("GET {path} HTTP/1.1\nAuthorization: Bearer {}", self.token);
        let (status, text) = self.ask(&head, "");
        (status, body_of(&text))
    }

    fn post(&self, body: &Value) -> (u16, Value) {
        let head = format!(
            "POST {} HTTP/1.1\nAuthorization: Bearer {}\nContent-Type: application/json",
            self.control_path(),
            self.token
        );
        let (status, text) = self.ask(&head, &body.to_string());
        (status, body_of(&text))
    }

    fn control_path(&self) -> String {
        format!("/api/v1/pools/{}/control", self.id)
    }

    fn fileset_count(&self) -> usize {
        let (status, list) = self.get(&format!("/api/v1/pools/{}/filesets", self.id));
        assert_eq!(status, 200, "{list}");
        list.as_array().expect("a list").len()
    }
}

impl Drop for TestHttpServer {
    fn drop(&mut self) {
        drop(self.http.take());
        let _ = self.pool.close();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn exchange(mut socket: impl std::io::Read + std::io::Write, text: &str) -> (u16, String) {
    // The server may refuse before it has read everything.
    let _ = socket.write_all(text.as_bytes());
    let mut told = Vec::new();
    let _ = socket.read_to_end(&mut told);
    let told = String::from_utf8_lossy(&told).into_owned();
    let status = told.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, told)
}

fn body_of(text: &str) -> Value {
    let (_, body) = text.split_once("\r\n\r\n").unwrap_or_default();
    serde_json::from_str(body).unwrap_or_else(|_| json!(body))
}

/// Goal: with the token, everything can be read, and every change made that a command can make.
/// Failed changes are reported.
#[test]
fn the_token_opens_everything() {
    let served = TestHttpServer::new("all", &HttpOptions::default());
    let (status, pools) = served.get("/api/v1/pools");
    assert_eq!((status, &pools[0]["path"]), (200, &json!("/srv/secret.hf")));
    let (status, exports) = served.get(&format!("/api/v1/pools/{}/exports", served.id));
    assert_eq!((status, &exports[0]["export"]["name"]), (200, &json!("/secret")));
    assert_eq!(served.fileset_count(), 2);
    let create = json!({ "do": "fileset-create", "name": "a", "properties": {} });
    assert_eq!(served.post(&create), (200, json!("done")));
    assert_eq!(served.fileset_count(), 3);
    let (status, told) = served.post(&create);
    assert!(status == 422 && told["error"].as_str().is_some_and(|it| it.contains("a")), "{told}");
    for (body, words) in [
        (json!({ "do": "burn" }), "burn"),
        (json!({ "do": "job-list", "more": 1 }), "more"),
        (json!([]), "not understood"),
    ] {
        let (status, told) = served.post(&body);
        assert!(status == 400 && told.to_string().contains(words), "{told}");
    }
    let (status, _) = served.get("/api/v1/pools/none/filesets");
    assert_eq!(status, 404);
    let (status, health) = served.get("/healthz");
    assert_eq!((status, health), (200, json!({ "ok": true, "degraded": 0 })));
}

/// Goal: without the token no name is shown and nothing changes (WE3, WE4). Method: each path of
/// the OpenAPI document, from this machine and, by the guard alone, from another.
#[test]
fn without_the_token_there_are_no_names_and_no_changes() {
    let served = TestHttpServer::new("none", &HttpOptions::default());
    for route in openapi::ROUTES {
        let path = route.path.replace("{pool}", &served.id);
        let method = route.method.to_uppercase();
        let head = format!("{method} {path} HTTP/1.1\nContent-Type: application/json");
        let (status, text) = served.ask(&head, "");
        let is_open = ["/", "/metrics", "/healthz"].contains(&route.path);
        assert_eq!(status, if is_open { 200 } else { 401 }, "{path}: {text}");
        for name in ["secret", &served.token] {
            assert!(!text.contains(name), "{path} tells {name}: {text}");
        }
    }
    let create = json!({ "do": "fileset-create", "name": "a", "properties": {} }).to_string();
    let path = served.control_path();
    let wrong = "0".repeat(64);
    for (head, expected) in [
        (format!("POST {path} HTTP/1.1\nContent-Type: application/json"), 401),
        (
            format!(
                "POST {path} HTTP/1.1\nAuthorization: Bearer {wrong}\n\
                 Content-Type: application/json"
            ),
            401,
        ),
        (
            format!(
                "POST {path} HTTP/1.1\nAuthorization: Basic {}\nContent-Type: application/json",
                served.token
            ),
            401,
        ),
        // The token does not count in the address or in a cookie.
        (
            format!("POST {path}?token={} HTTP/1.1\nContent-Type: application/json", served.token),
            401,
        ),
        (
            format!(
                "POST {path} HTTP/1.1\nCookie: token={}\nContent-Type: application/json",
                served.token
            ),
            401,
        ),
    ] {
        assert_eq!(served.ask(&head, &create).0, expected, "{head}");
    }
    assert_eq!(served.fileset_count(), 2);
}

/// Goal: other sites' pages get nothing through an administrator's browser (WE1, WE2, WE3). Method:
/// requests as browsers send them for forms, scripts and rebound names, all with the token.
#[test]
fn pages_of_other_sites_get_nothing() {
    let served = TestHttpServer::new("sites", &HttpOptions::default());
    let (address, path) = (served.address(), served.control_path());
    let token = format!("Authorization: Bearer {}", served.token);
    let create = json!({ "do": "fileset-create", "name": "a", "properties": {} }).to_string();
    let json = "Content-Type: application/json";
    let own = format!("http://{address}");
    let port = address.port();
    for (origin, expected) in [
        ("http://evil.example".to_owned(), 403),
        ("null".to_owned(), 403),
        (format!("https://{address}"), 403),
        ("http://127.0.0.1:1".to_owned(), 403),
        (format!("http://localhost:{port}"), 200),
        (own.clone(), 200),
    ] {
        let head = format!("GET /api/v1/pools HTTP/1.1\n{token}\nOrigin: {origin}");
        let (status, text) = served.ask(&head, "");
        assert_eq!(status, expected, "{origin}: {text}");
        let lower = text.to_lowercase();
        assert!(!lower.contains("access-control-"), "{text}");
        assert!(lower.contains("x-frame-options: deny") && lower.contains("no-store"), "{text}");
    }
    for kind in
        ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
    {
        let head = format!("POST {path} HTTP/1.1\n{token}\nOrigin: {own}\nContent-Type: {kind}");
        assert_eq!(served.ask(&head, &create).0, 415, "{kind}");
    }
    for method in ["OPTIONS", "PUT", "DELETE", "PATCH", "TRACE"] {
        let head = format!("{method} {path} HTTP/1.1\n{token}\n{json}");
        let (status, text) = served.ask(&head, &create);
        assert!(status == 405 && !text.to_lowercase().contains("access-control"), "{text}");
    }
    assert_eq!(served.ask(&format!("GET {path} HTTP/1.1\n{token}\n{json}"), &create).0, 405);
    for host in [
        "evil.example".to_owned(),
        format!("evil.example:{port}"),
        format!("127.0.0.1:{port}@evil.example"),
        format!("127.0.0.1.evil.example:{port}"),
        "127.0.0.1:1".to_owned(),
        "127.0.0.1".to_owned(),
        String::new(),
        format!("127.0.0.1:{port}\r\nHost: evil.example"),
    ] {
        let text = format!(
            "GET /metrics HTTP/1.1\r\nHost: {host}\r\n{token}\r\nConnection: close\r\n\r\n"
        );
        let (status, told) = served.ask_raw(&text);
        assert!(status == 421 || status == 400, "{host}: {told}");
        assert!(!told.contains("holdfast_"), "{host}: {told}");
    }
    let absent = format!("GET /metrics HTTP/1.1\r\n{token}\r\nConnection: close\r\n\r\n");
    assert_eq!(served.ask_raw(&absent).0, 421);
    let elsewhere = format!(
        "GET http://evil.example/metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(served.ask_raw(&elsewhere).0, 421);
    let named =
        format!("GET /metrics HTTP/1.1\r\nHost: LocalHost:{port}\r\nConnection: close\r\n\r\n");
    assert_eq!(served.ask_raw(&named).0, 200);
    assert_eq!(served.fileset_count(), 2);
}

/// Goal: requests for metrics without the token do not delay an administrator. Method: a lock
/// blocks the metrics, and one more request comes than there are permits.
#[test]
fn who_has_no_right_leaves_workers_to_others() {
    let served = TestHttpServer::new("anyone", &HttpOptions::default());
    let locked = served.hub.schedules();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..=OF_ANYONE_MAX {
            let (tell, served) = (tell.clone(), &served);
            scope.spawn(move || {
                let (status, _) = served.ask("GET /metrics HTTP/1.1", "");
                tell.send(status).expect("the test waits");
            });
        }
        assert_eq!(told.recv_timeout(ANSWER_TIME), Ok(503), "there are too many");
        assert_eq!(served.get("/api/v1/operations").0, 200);
        assert_eq!(served.get("/api/v1/history").0, 200);
        drop(locked);
        for _ in 0..OF_ANYONE_MAX {
            assert_eq!(told.recv_timeout(ANSWER_TIME), Ok(200));
        }
    });
}

/// Goal: without the token, another machine gets only the page without facts. With the token, it
/// gets the metrics too.
#[test]
fn other_machines_need_the_token_for_metrics_too() {
    let served = TestHttpServer::new("far", &HttpOptions::default());
    let token = Token::of(&served.hub.state).expect("it is there");
    let own = Peer { uid: 1000, gid: 1000 };
    let (hosts, port) = (vec!["10.0.0.1".to_owned()], 80);
    let guard = Guard { hosts, port, is_tls: false, token, own };
    let ask = |from: HttpPeer, path: &str, headers: &[(&str, &str)]| {
        let mut request = Request::get(path).header("Host", "10.0.0.1");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("it is well formed");
        guard.check(&request, from).map_err(|refused| refused.status.as_u16())
    };
    let far = HttpPeer::Network("10.0.0.9:999".parse().expect("it is one"));
    let near = HttpPeer::Network("[::ffff:127.0.0.1]:999".parse().expect("it is one"));
    assert_eq!(ask(near, "/metrics", &[]), Ok(HttpRole::Anyone));
    assert_eq!(ask(far, "/", &[]), Ok(HttpRole::Anyone));
    for path in ["/metrics", "/healthz", "/api/v1/pools", "/nothing"] {
        assert_eq!(ask(far, path, &[]), Err(401), "{path}");
    }
    let bearer = format!("Bearer {}", served.token);
    let with_token = ask(far, "/metrics", &[("Authorization", &bearer)]);
    assert_eq!(with_token, Ok(HttpRole::Administrator(own)));
    let twice = [("Authorization", bearer.as_str()), ("Authorization", bearer.as_str())];
    assert_eq!(ask(far, "/metrics", &twice), Err(401));
    let local = |uid: u32| HttpPeer::Local(Peer { uid, gid: uid });
    assert_eq!(ask(local(1001), "/metrics", &[]), Ok(HttpRole::Anyone));
    assert_eq!(ask(local(1001), "/api/v1/pools", &[]), Err(401));
    for uid in [0, 1000] {
        let peer = Peer { uid, gid: uid };
        assert_eq!(ask(local(uid), "/api/v1/pools", &[]), Ok(HttpRole::Administrator(peer)));
    }
}

/// Goal: on the unix socket, an administrator needs no token.
#[test]
fn the_owner_needs_no_token_on_the_unix_socket() {
    let served = TestHttpServer::new("unix", &HttpOptions::default());
    let socket = UnixStream::connect(served.directory.join("http")).expect("it listens");
    let text = "GET /api/v1/pools HTTP/1.1\r\nHost: anything\r\nConnection: close\r\n\r\n";
    let (status, told) = exchange(socket, text);
    assert!(status == 200 && told.contains("secret.hf"), "{told}");
}

/// Goal: no client blocks others for long or exceeds the limits. Method: an endless head, a body
/// above the limit, and one connection too many.
#[test]
fn what_a_client_may_take_is_bounded() {
    let served = TestHttpServer::new("bounds", &HttpOptions::default());
    let head = format!(
        "POST {} HTTP/1.1\nAuthorization: Bearer {}\nContent-Type: application/json",
        served.control_path(),
        served.token
    );
    assert_eq!(served.ask(&head, &" ".repeat(api::BODY_BYTES_MAX + 1)).0, 413);
    let many = format!("GET /metrics HTTP/1.1\n{}", "X-More: 1\n".repeat(100));
    assert_eq!(served.ask(&many, "").0, 431);
    let start = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\nX-More: ", served.address());
    let end = "\r\nConnection: close\r\n\r\n";
    let rest = connect::HEAD_BYTES_MAX - start.len() - end.len();
    let status = |bytes| served.ask_raw(&format!("{start}{}{end}", "x".repeat(bytes))).0;
    assert_eq!(status(rest), 200);
    assert_eq!(status(rest + 1), 431);
    // The connection is closed while the client still sends, so the answer may be lost.
    assert_ne!(status(1 << 20), 200);
    let begun = Instant::now();
    let idle: Vec<TcpStream> = (0..64)
        .map(|_| {
            let mut socket = TcpStream::connect(served.address()).expect("it listens");
            socket.write_all(b"GET /metrics HTTP/1.1\r\nX-Slow: ").expect("it reads");
            socket
        })
        .collect();
    let (status, told) = served.ask("GET /healthz HTTP/1.1", "");
    assert_eq!(status, 200, "{told}");
    assert!(begun.elapsed() >= connect::HEADER_TIME.mul_f32(0.9), "65 were served at a time");
    assert!(begun.elapsed() < connect::HEADER_TIME * 4);
    for mut socket in idle {
        let mut rest = Vec::new();
        socket.set_read_timeout(Some(connect::HEADER_TIME * 4)).expect("it is no zero");
        let _ = socket.read_to_end(&mut rest);
        assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
    }
}

/// Goal: the OpenAPI document has every route, every request, and every schema that it refers to.
#[test]
fn the_document_describes_what_is_answered() {
    let served = TestHttpServer::new("document", &HttpOptions::default());
    let (status, document) = served.get("/api/v1/openapi.json");
    assert_eq!((status, &document["openapi"]), (200, &json!("3.0.3")));
    let paths = document["paths"].as_object().expect("it has paths");
    for (path, methods) in paths {
        for method in methods.as_object().expect("they are methods").keys() {
            let address = path.replace("{pool}", &served.id);
            let status = match method.as_str() {
                "get" => served.get(&address).0,
                _ => served.post(&json!({ "do": "job-list" })).0,
            };
            assert_eq!(status, 200, "{method} {path}");
        }
    }
    assert_eq!(paths.len(), openapi::ROUTES.len());
    let text = document.to_string();
    let schemas = document["components"]["schemas"].as_object().expect("it has schemas");
    let mut count = 0;
    for name in text.split("#/components/schemas/").skip(1).filter_map(|it| it.split('"').next()) {
        assert!(schemas.contains_key(name), "{name} is described nowhere");
        count += 1;
    }
    assert!(count > 10, "only {count} schemas are named");
    for word in ["fileset-create", "snapshot-create", "job-pause", "export-add", "is_read_only"] {
        assert!(schemas["Request"].to_string().contains(word) || text.contains(word), "{word}");
    }
    for (path, words) in [("/api/v1/nothing", "openapi.json"), ("/api/v2/pools", "version 1")] {
        let (status, refused) = served.get(path);
        assert!(status == 404 && refused.to_string().contains(words), "{refused}");
    }
}

/// Goal: the metrics contain each kind of number, with a type, and no names but the pool's.
#[test]
fn metrics_have_types_labels_and_histograms() {
    let served = TestHttpServer::new("metrics", &HttpOptions::default());
    let text = metrics::text_of(Arc::clone(&served.hub));
    let pool = format!("{{pool=\"{}\"}}", served.id);
    for line in [
        "# TYPE holdfast_journal_commits counter".to_owned(),
        format!("holdfast_healthy{pool} 1"),
        format!("holdfast_degraded{pool} 0"),
        "# TYPE holdfast_space_used_bytes gauge".to_owned(),
        format!("holdfast_nfs_exports{pool} 1"),
        format!("holdfast_jobs_running{pool} 0"),
        "holdfast_clients 0".to_owned(),
        "# TYPE holdfast_operation_duration_seconds histogram".to_owned(),
        "holdfast_operation_duration_seconds_bucket{le=\"+Inf\",front=\"nfs\",\
         operation=\"WRITE\"} 0"
            .to_owned(),
    ] {
        assert!(text.contains(&line), "{line} is not in\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let value = line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
        assert!(value.is_some(), "{line}");
    }
    let mut families: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
    let count = families.len();
    families.dedup();
    families.sort_unstable();
    families.dedup();
    assert_eq!(families.len(), count, "a metric is told twice");
    let rename = Control::PoolRename { name: "tank".to_owned() };
    served.hub.control(0, &rename, Peer::own()).expect("no other pool has the name");
    let text = metrics::text_of(Arc::clone(&served.hub));
    assert!(text.contains("holdfast_healthy{pool=\"tank\"} 1"), "{text}");
}

/// Goal: the token never crosses a network unencrypted without `--insecure`. With a certificate,
/// only TLS is served.
#[test]
fn other_addresses_need_tls() {
    let at = |address: &str| HttpOptions {
        address: Some(address.parse().expect("it is one")),
        ..HttpOptions::default()
    };
    let refused = at("0.0.0.0:8080").check().expect_err("it is open");
    assert!(refused.contains("--tls-cert") && refused.contains("--insecure"), "{refused}");
    at("[2001:db8::1]:80").check().expect_err("it is open");
    at("127.0.0.1:8080").check().expect("it is this machine's");
    at("[::1]:8080").check().expect("it is this machine's");
    HttpOptions { is_insecure: true, ..at("0.0.0.0:80") }.check().expect("somebody says so");

    let testing = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/hub/http/testing");
    let files = (testing.join("cert.pem"), testing.join("key.pem"));
    HttpOptions { tls: Some(files.clone()), ..at("0.0.0.0:80") }.check().expect("it has TLS");
    let served =
        TestHttpServer::new("tls", &HttpOptions { tls: Some(files), ..HttpOptions::default() });
    let (status, _) = served.ask("GET /healthz HTTP/1.1", "");
    assert_ne!(status, 200, "it answers in the clear");
    let told = by_tls(served.address(), &testing.join("cert.pem"));
    assert!(told.starts_with("HTTP/1.1 200") && told.contains("\"ok\":true"), "{told}");
    let no_key = (testing.join("cert.pem"), testing.join("cert.pem"));
    let refused = connect::tls_of(&no_key.0, &no_key.1).err().expect("it is no key");
    assert!(format!("{refused:#}").contains("no private key"), "{refused:#}");
}

fn by_tls(address: SocketAddr, certificate: &Path) -> String {
    use tokio_rustls::rustls::pki_types::pem::PemObject as _;
    use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
    use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

    let mut roots = RootCertStore::empty();
    let trusted = CertificateDer::from_pem_file(certificate).expect("it is one");
    roots.add(trusted).expect("it is one");
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("it is one");
    let client = ClientConnection::new(Arc::new(config), name).expect("it is well formed");
    let socket = TcpStream::connect(address).expect("it listens");
    let port = address.port();
    let text =
        format!("GET /healthz HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n");
    exchange(StreamOwned::new(client, socket), &text).1
}
