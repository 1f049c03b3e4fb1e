//! The API over a real socket, before the made-up node of the `fake` example.

use std::net::SocketAddr;
use std::sync::Arc;

use anabranch_admin::{ATTEMPTS_LIMIT, CONNECTIONS_LIMIT, IDLE_LIMIT, Settings, serve};
use serde_json::{Value, json};
use ureq::http::Response;
use ureq::{Agent, Body};

#[path = "../examples/fake/backend.rs"]
mod backend;

const ADMIN: &str = "Basic YWRtaW46YWRtaW4tcGFzc3dvcmQ=";

struct Server {
    address: SocketAddr,
    agent: Agent,
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl Server {
    fn start() -> Server {
        Server::with(Settings::default())
    }

    fn with(settings: Settings) -> Server {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let backend = Arc::new(backend::Fake::new(true));
                let stop = async {
                    let _ = stopped.await;
                };
                serve(listener, backend, settings, stop).await.unwrap();
            });
        });
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .build()
            .into();
        Server {
            address,
            agent,
            _stop: stop,
        }
    }

    fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Value>,
    ) -> Response<Body> {
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        match body {
            Some(body) => {
                let request = request
                    .header("content-type", "application/json")
                    .body(body.to_string())
                    .unwrap();
                self.agent.run(request).unwrap()
            }
            None => self.agent.run(request.body(()).unwrap()).unwrap(),
        }
    }

    /// As the administrator with Basic; status and body.
    fn admin(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        answer(self.send(
            method,
            path,
            &[("authorization", ADMIN), ("x-anabranch", "1")],
            body,
        ))
    }
}

fn answer(mut response: Response<Body>) -> (u16, Value) {
    let status = response.status().as_u16();
    let text = response.body_mut().read_to_string().unwrap();
    (
        status,
        serde_json::from_str(&text).unwrap_or(Value::String(text)),
    )
}

fn login(server: &Server) -> String {
    let body = json!({"user": "admin", "password": "admin-password"});
    let response = server.send("POST", "/api/v1/login", &[("x-anabranch", "1")], Some(body));
    assert_eq!(response.status(), 200);
    let cookie = response
        .headers()
        .get("set-cookie")
        .unwrap()
        .to_str()
        .unwrap();
    for word in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(cookie.contains(word), "{cookie}");
    }
    cookie.split(';').next().unwrap().to_owned()
}

#[test]
fn a_session_is_opened_by_login_and_ended_by_logout() {
    let server = Server::start();
    assert_eq!(
        answer(server.send("GET", "/api/v1/whoami", &[], None)).0,
        401
    );
    let cookie = login(&server);
    let (status, body) = answer(server.send("GET", "/api/v1/whoami", &[("cookie", &cookie)], None));
    assert_eq!(status, 200);
    assert_eq!(
        body["rights"],
        json!(["management", "policy", "monitoring", "all"])
    );
    let own = [("cookie", cookie.as_str()), ("x-anabranch", "1")];
    assert_eq!(
        answer(server.send("POST", "/api/v1/logout", &own, None)).0,
        204
    );
    assert_eq!(
        answer(server.send("GET", "/api/v1/whoami", &[("cookie", &cookie)], None)).0,
        401
    );
}

#[test]
fn a_write_without_the_own_header_is_refused_unless_it_carries_a_token() {
    let server = Server::start();
    let cookie = login(&server);
    let body = || Some(json!({"name": "new", "password": "long enough"}));
    let for_cookie = json!({"user": "admin", "password": "admin-password"});
    assert_eq!(
        answer(server.send("POST", "/api/v1/login", &[], Some(for_cookie))).0,
        403
    );
    for headers in [("cookie", cookie.as_str()), ("authorization", ADMIN)] {
        let (status, error) = answer(server.send("POST", "/api/v1/users", &[headers], body()));
        assert_eq!((status, &error["error"]), (403, &json!("csrf")));
    }
    let asked = json!({"user": "admin", "password": "admin-password", "token": true});
    let (_, token) = answer(server.send("POST", "/api/v1/login", &[], Some(asked)));
    let bearer = format!("Bearer {}", token["token"].as_str().unwrap());
    let (status, _) = answer(server.send(
        "POST",
        "/api/v1/users",
        &[("authorization", &bearer)],
        body(),
    ));
    assert_eq!(status, 201);
}

#[test]
fn a_login_needs_the_right_password_and_a_console_role() {
    let server = Server::start();
    let try_login = |user: &str, password: &str| {
        let body = json!({"user": user, "password": password});
        answer(server.send("POST", "/api/v1/login", &[("x-anabranch", "1")], Some(body)))
    };
    let wrong = try_login("admin", "x");
    assert_eq!(wrong.0, 401);
    assert_eq!(
        wrong,
        try_login("nobody", "x"),
        "an unknown user looks like a wrong password"
    );
    let (status, error) = try_login("sensor-12", "password");
    assert_eq!(status, 403);
    assert!(
        error["reason"]
            .as_str()
            .unwrap()
            .contains("admin.management"),
        "{error}"
    );
}

#[test]
fn failed_logins_make_an_address_wait_and_good_ones_do_not() {
    let server = Server::start();
    for _ in 0..ATTEMPTS_LIMIT * 2 {
        assert_eq!(server.admin("GET", "/api/v1/whoami", None).0, 200);
    }
    let wrong = [("authorization", "Basic YWRtaW46eA==")];
    for _ in 0..ATTEMPTS_LIMIT {
        assert_eq!(
            answer(server.send("GET", "/api/v1/whoami", &wrong, None)).0,
            401
        );
    }
    let response = server.send("GET", "/api/v1/whoami", &[("authorization", ADMIN)], None);
    assert_eq!(response.status(), 429);
    let wait: u64 = response
        .headers()
        .get("retry-after")
        .unwrap()
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!((1..=60).contains(&wait));
}

#[test]
fn a_changed_password_ends_the_sessions_opened_with_the_old_one() {
    let server = Server::start();
    let cookie = login(&server);
    let own = [("cookie", cookie.as_str()), ("x-anabranch", "1")];
    let change = json!({"password": "a new password"});
    assert_eq!(
        answer(server.send("PUT", "/api/v1/users/admin", &own, Some(change))).0,
        204
    );
    assert_eq!(
        answer(server.send("GET", "/api/v1/whoami", &[("cookie", &cookie)], None)).0,
        401
    );
}

#[test]
fn rights_are_those_of_the_moment() {
    let server = Server::start();
    let monitor = [
        ("authorization", "Basic Z3JhZmFuYTpwYXNzd29yZA=="),
        ("x-anabranch", "1"),
    ];
    let ask = |method: &str, path: &str| answer(server.send(method, path, &monitor, None)).0;
    assert_eq!(ask("GET", "/api/v1/connections"), 200);
    for (method, path) in [
        ("GET", "/api/v1/users"),
        ("GET", "/api/v1/rules"),
        ("DELETE", "/api/v1/connections/1"),
        ("GET", "/api/v1/rules/explain?action=publish"),
    ] {
        assert_eq!(ask(method, path), 403, "{method} {path}");
    }
    let roles = json!({"roles": ["administrator"]});
    assert_eq!(
        server.admin("PUT", "/api/v1/users/grafana", Some(roles)).0,
        204
    );
    assert_eq!(ask("GET", "/api/v1/users"), 200);
}

#[test]
fn without_the_monitoring_right_only_own_connections_are_listed() {
    let server = Server::start();
    let roles = json!({"roles": ["management"]});
    assert_eq!(
        server.admin("PUT", "/api/v1/users/reader", Some(roles)).0,
        204
    );
    let reader = [("authorization", "Basic cmVhZGVyOnBhc3N3b3Jk")];
    let (_, body) = answer(server.send("GET", "/api/v1/connections", &reader, None));
    let users: Vec<&str> = body["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["user"].as_str().unwrap())
        .collect();
    assert_eq!(users, ["reader"]);
    assert_eq!(
        server.admin("GET", "/api/v1/connections", None).1["items"]
            .as_array()
            .unwrap()
            .len(),
        5
    );
}

#[test]
fn users_and_rules_are_created_changed_listed_and_deleted() {
    let server = Server::start();
    let user = json!({"name": "a/b", "password": "long enough", "roles": ["sensor"]});
    assert_eq!(
        server.admin("POST", "/api/v1/users", Some(user.clone())).0,
        201
    );
    assert_eq!(server.admin("POST", "/api/v1/users", Some(user)).0, 409);
    assert_eq!(
        server.admin("GET", "/api/v1/users/a%2Fb", None).1["roles"],
        json!(["sensor"])
    );
    assert_eq!(server.admin("DELETE", "/api/v1/users/a%2Fb", None).0, 204);
    assert_eq!(server.admin("DELETE", "/api/v1/users/a%2Fb", None).0, 404);
    assert_eq!(
        server.admin("DELETE", "/api/v1/users/admin", None).0,
        409,
        "not oneself"
    );

    let mut rule = json!({"effect": "deny", "priority": 3, "subjects": [{"kind": "user", "value": "x"}], "actions": ["publish"],
        "resource": {"vhost": "/", "kind": "topic", "match": "filter", "pattern": "a/#"}});
    let (status, created) = server.admin("POST", "/api/v1/rules", Some(rule.clone()));
    assert_eq!(status, 201);
    let path = format!("/api/v1/rules/{}", created["id"].as_str().unwrap());
    rule["effect"] = json!("allow");
    assert_eq!(server.admin("PUT", &path, Some(rule)).1["effect"], "allow");
    let (_, explained) = server.admin(
        "GET",
        "/api/v1/rules/explain?user=x&action=publish&vhost=/&kind=topic&name=a/b",
        None,
    );
    assert_eq!(
        (&explained["allowed"], &explained["rule"]),
        (&json!(true), &created["id"])
    );
    assert_eq!(server.admin("DELETE", &path, None).0, 204);
}

#[test]
fn a_queue_is_declared_filled_looked_into_purged_and_deleted() {
    let server = Server::start();
    let declare = json!({"kind": "queue", "durable": true});
    let path = "/api/v1/streams/%2F/a%20queue";
    assert_eq!(server.admin("PUT", path, Some(declare.clone())).0, 201);
    assert_eq!(server.admin("PUT", path, Some(declare)).0, 200);
    assert_eq!(
        server
            .admin(
                "PUT",
                path,
                Some(json!({"kind": "stream", "durable": true}))
            )
            .0,
        409
    );
    let message = json!({"vhost": "/", "exchange": "", "address": "a queue", "body": "hello"});
    assert_eq!(
        server.admin("POST", "/api/v1/publish", Some(message)).1,
        json!({"routed": 1})
    );
    assert_eq!(server.admin("GET", path, None).1["ready"], 1);
    for _ in 0..2 {
        let (_, peeked) = server.admin("GET", &format!("{path}/peek?count=5"), None);
        assert_eq!(peeked["items"][0]["body"], "hello", "looking takes nothing");
    }
    assert_eq!(
        server
            .admin("GET", &format!("{path}/peek?count=101"), None)
            .0,
        400
    );
    assert_eq!(
        server
            .admin("DELETE", &format!("{path}?if_empty=true"), None)
            .0,
        409
    );
    assert_eq!(
        server.admin("POST", &format!("{path}/purge"), None).1,
        json!({"purged": 1})
    );
    assert_eq!(
        server
            .admin("DELETE", &format!("{path}?if_empty=true"), None)
            .0,
        204
    );
    assert_eq!(server.admin("GET", path, None).0, 404);
}

#[test]
fn a_subscription_is_moved_by_end_offset_or_time() {
    let server = Server::start();
    let seek =
        |place: Value| server.admin("POST", "/api/v1/streams/%2F/orders-eu/seek", Some(place));
    assert_eq!(seek(json!({"to": "start"})).1, json!({"left": 0}));
    assert_eq!(seek(json!({"offset": 103})).1, json!({"left": 3}));
    let time = json!({"time": "2026-01-01T00:00:00Z"});
    assert_eq!(seek(time).1, json!({"left": 0}));
    assert_eq!(
        seek(json!({"time": 4_000_000_000_000_u64})).1,
        json!({"left": 5})
    );
    for wrong in [
        json!({}),
        json!({"to": "middle"}),
        json!({"to": "end", "offset": 1}),
        json!({"offset": -1}),
        json!({"time": "yesterday"}),
    ] {
        let (status, error) = seek(wrong.clone());
        assert_eq!(status, 400, "{wrong}: {error}");
    }
    let nowhere = "/api/v1/streams/%2F/nowhere/seek";
    let end = json!({"to": "end"});
    assert_eq!(server.admin("POST", nowhere, Some(end)).0, 404);
}

#[test]
fn last_values_are_listed_page_by_page_and_cleared() {
    let server = Server::start();
    let page = |query: &str| server.admin("GET", &format!("/api/v1/retained?{query}"), None);
    let (status, first) = page("vhost=/&filter=plant/%23&count=20");
    assert_eq!(
        (status, first["items"].as_array().unwrap().len()),
        (200, 20)
    );
    let next = first["next"].as_str().unwrap();
    let (_, second) = page(&format!("filter=plant/%23&count=20&after={next}"));
    assert_eq!(second["items"].as_array().unwrap().len(), 10);
    assert_eq!(second["next"], Value::Null);
    assert!(second["items"][0]["address"].as_str().unwrap() > next);
    assert_eq!(page("count=0").0, 400);

    let clear = "/api/v1/retained?topic=plant/07/temp";
    assert_eq!(server.admin("DELETE", clear, None).0, 204);
    assert_eq!(server.admin("DELETE", clear, None).0, 404);
    assert_eq!(page("filter=plant/07/temp").1["items"], json!([]));
    assert_eq!(server.admin("DELETE", "/api/v1/retained", None).0, 400);
}

#[test]
fn a_policy_needs_its_own_right_and_is_replaced_by_name() {
    let server = Server::start();
    let path = "/api/v1/policies/%2F/limits";
    let body = |most: u64| json!({"pattern": "^orders", "settings": {"messages_max": most}});
    assert_eq!(server.admin("PUT", path, Some(body(1))).0, 204);
    assert_eq!(server.admin("PUT", path, Some(body(2))).0, 204);
    let (_, list) = server.admin("GET", "/api/v1/policies", None);
    let items = list["items"].as_array().unwrap();
    let found = items.iter().find(|row| row["name"] == "limits").unwrap();
    assert_eq!(found["settings"], json!({"messages_max": 2}));
    assert_eq!(found["applies_to"], "queues");
    let unknown = json!({"pattern": "a", "settings": {"max_messages": 1}});
    assert_eq!(server.admin("PUT", path, Some(unknown)).0, 400);
    let roles = json!({"roles": ["management"]});
    server.admin("PUT", "/api/v1/users/reader", Some(roles));
    let reader = [
        ("authorization", "Basic cmVhZGVyOnBhc3N3b3Jk"),
        ("x-anabranch", "1"),
    ];
    let refused = answer(server.send("PUT", path, &reader, Some(body(3)))).0;
    assert_eq!(refused, 403);
    assert_eq!(server.admin("DELETE", path, None).0, 204);
    assert_eq!(server.admin("DELETE", path, None).0, 404);
}

#[test]
fn exchanges_and_bindings_come_and_go() {
    let server = Server::start();
    let exchange = json!({"vhost": "/", "name": "news", "kind": "fanout", "durable": true});
    assert_eq!(
        server.admin("POST", "/api/v1/exchanges", Some(exchange)).0,
        201
    );
    let binding = json!({"vhost": "/", "exchange": "news", "destination_kind": "queue", "destination": "orders-eu", "pattern": ""});
    assert_eq!(
        server
            .admin("POST", "/api/v1/bindings", Some(binding.clone()))
            .0,
        201
    );
    assert_eq!(
        server
            .admin("GET", "/api/v1/bindings?exchange=news", None)
            .1["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let mut onwards = binding.clone();
    onwards["destination_kind"] = json!("exchange");
    assert_eq!(
        server
            .admin("POST", "/api/v1/bindings", Some(onwards.clone()))
            .0,
        404,
        "no exchange has the queue's name"
    );
    onwards["destination"] = json!("amq.fanout");
    assert_eq!(
        server.admin("POST", "/api/v1/bindings", Some(onwards)).0,
        201
    );
    let (_, to) = server.admin(
        "GET",
        "/api/v1/bindings?exchange=news&destination=amq.fanout",
        None,
    );
    assert_eq!(to["items"][0]["destination_kind"], "exchange");
    assert_eq!(
        server.admin("DELETE", "/api/v1/bindings", Some(binding)).0,
        204
    );
    assert_eq!(
        server.admin("DELETE", "/api/v1/exchanges/%2F/news", None).0,
        204
    );
    assert_eq!(
        server
            .admin("DELETE", "/api/v1/exchanges/%2F/amq.topic", None)
            .0,
        403
    );
}

#[test]
fn a_connection_is_closed_once() {
    let server = Server::start();
    assert_eq!(
        server
            .admin("DELETE", "/api/v1/connections/1?reason=maintenance", None)
            .0,
        204
    );
    assert_eq!(server.admin("DELETE", "/api/v1/connections/1", None).0, 404);
}

#[test]
fn what_cannot_be_read_is_answered_in_the_apis_own_words() {
    let server = Server::with(Settings {
        body_limit_bytes: 2000,
        ..Settings::default()
    });
    let big = json!({"name": "x".repeat(3000), "password": "long enough"});
    for (method, path, body, status, error) in [
        (
            "POST",
            "/api/v1/users",
            Some(json!({"name": "x"})),
            400,
            "bad_request",
        ),
        (
            "POST",
            "/api/v1/users",
            Some(json!({"name": "x", "password": "short"})),
            400,
            "bad_request",
        ),
        (
            "POST",
            "/api/v1/users",
            Some(json!({"name": "x", "password": "long enough", "rolls": []})),
            400,
            "bad_request",
        ),
        ("POST", "/api/v1/users", None, 400, "bad_request"),
        ("POST", "/api/v1/users", Some(big), 413, "too_large"),
        ("GET", "/api/v1/nothing", None, 404, "not_found"),
        ("GET", "/api/queues", None, 404, "not_found"),
        ("PATCH", "/api/v1/users", None, 405, "not_found"),
        ("GET", "/nothing", None, 404, "not_found"),
    ] {
        let (got, body) = server.admin(method, path, body);
        assert_eq!(
            (got, body["error"].as_str()),
            (status, Some(error)),
            "{method} {path}: {body}"
        );
        assert!(
            body["reason"]
                .as_str()
                .is_some_and(|reason| !reason.is_empty())
        );
    }
}

#[test]
fn another_sites_name_for_this_address_is_refused() {
    let server = Server::start();
    let (status, error) = answer(server.send("GET", "/", &[("host", "evil.example")], None));
    assert_eq!((status, &error["error"]), (403, &json!("host")));
    let named = Server::with(Settings {
        allowed_hosts: vec!["console.example".to_owned()],
        ..Settings::default()
    });
    assert_eq!(
        named
            .send("GET", "/", &[("host", "console.example:80")], None)
            .status(),
        200
    );
}

#[test]
fn the_console_is_served_with_a_strict_policy_and_revalidated_by_etag() {
    let server = Server::start();
    let page = server.send("GET", "/", &[], None);
    assert_eq!(page.status(), 200);
    let policy = page
        .headers()
        .get("content-security-policy")
        .unwrap()
        .to_str()
        .unwrap();
    assert!(
        policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"),
        "{policy}"
    );
    assert!(!policy.contains("unsafe"));
    let etag = page.headers().get("etag").unwrap().to_str().unwrap();
    assert_eq!(
        server
            .send("GET", "/", &[("if-none-match", etag)], None)
            .status(),
        304
    );
    for path in ["/../Cargo.toml", "/%2e%2e/Cargo.toml", "/vendor/README.md"] {
        assert_eq!(server.send("GET", path, &[], None).status(), 404, "{path}");
    }
}

#[test]
fn health_and_metrics_answer_a_local_caller_and_a_proxied_one_must_have_the_right() {
    let server = Server::start();
    assert_eq!(server.send("GET", "/livez", &[], None).status(), 200);
    assert_eq!(server.send("GET", "/readyz", &[], None).status(), 200);
    let (status, text) = answer(server.send("GET", "/metrics", &[], None));
    assert_eq!(status, 200);
    let text = text.as_str().unwrap();
    assert!(
        text.contains("anabranch_received_total") && text.ends_with("# EOF\n"),
        "{text}"
    );
    let proxied = ("x-forwarded-for", "203.0.113.9");
    assert_eq!(
        server.send("GET", "/metrics", &[proxied], None).status(),
        401
    );
    assert_eq!(
        server
            .send(
                "GET",
                "/metrics",
                &[proxied, ("authorization", ADMIN)],
                None
            )
            .status(),
        200
    );
}

/// Half requests hold their places only as long as nobody else wants one.
#[test]
fn connections_that_send_half_a_request_keep_nobody_out() {
    use std::io::Write;
    let server = Server::start();
    let half = |_| {
        let mut stream = std::net::TcpStream::connect(server.address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nX: ").unwrap();
        stream
    };
    let held: Vec<_> = (0..CONNECTIONS_LIMIT + 50).map(half).collect();
    let asked = std::time::Instant::now();
    let response = server.send("GET", "/livez", &[], None);
    assert_eq!(response.status(), 200);
    assert!(
        asked.elapsed() < IDLE_LIMIT / 10,
        "it waited {:?} for a place",
        asked.elapsed()
    );
    drop(held);
}
