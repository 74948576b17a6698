//! A password file that changes while the service runs.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
};

use harness::{App, PostgresServer, REX};

#[test]
fn a_rotated_password_is_read_from_the_passfile_without_a_restart() {
    let server = PostgresServer::start();
    server.sql("postgres", "CREATE ROLE shop LOGIN PASSWORD 'pw-one'");
    server.sql("postgres", "GRANT CREATE ON SCHEMA public TO shop");
    let directory = tempfile::tempdir().unwrap();
    let passfile = directory.path().join("pgpass");
    let write = |line: &str| {
        fs::write(&passfile, format!("{line}\n")).unwrap();
        fs::set_permissions(&passfile, Permissions::from_mode(0o600)).unwrap();
    };
    write("*:*:*:shop:pw-one");
    let app =
        App::on(&format!("postgres://shop@{}/postgres?passfile={}", server.address(), passfile.display()));
    assert_eq!(app.post(REX).status, 201);

    server.sql("postgres", "ALTER ROLE shop PASSWORD 'pw-two'");
    server.sql("postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'shop'");
    app.wait_for_log("check the user and the password, or the password file");
    fs::set_permissions(&passfile, Permissions::from_mode(0o644)).unwrap();
    app.wait_for_log("pgpass is accessible to other users; protect it with chmod 600");
    fs::remove_file(&passfile).unwrap();
    app.wait_for_log("pgpass cannot be read: No such file or directory");
    write("another-server:*:*:shop:pw-two");
    app.wait_for_log("add a line for this server to the password file");
    assert_eq!(app.get("/v1/pets/1").status, 200, "reads continue");
    app.post(REX).error(503, "unavailable");

    write("*:*:*:shop:pw-two");
    app.wait_until_ready();
    assert_eq!(app.post(REX).json()["id"], 2);
    let (_, log) = app.printed();
    assert!(!log.contains("pw-"), "{log}");
}
