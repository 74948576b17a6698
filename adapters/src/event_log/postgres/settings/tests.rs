//! How URLs and the environment are parsed.

use tempfile::NamedTempFile;

use super::*;

fn parse(url: &str) -> Result<Vec<Target>, LogError> {
    super::parse(url, &|_| None)
}

#[test]
fn every_host_of_the_url_becomes_a_separate_target() {
    let targets =
        parse("postgres://rex:bone@one:1111,two:2222,three/pets?sslmode=disable&options=-c%20work_mem%3D1MB")
            .unwrap();
    let servers: Vec<_> = targets.iter().map(|target| target.server.as_str()).collect();
    assert_eq!(servers, ["one:1111", "two:2222", "three:5432"]);
    for target in &targets {
        assert_eq!(target.config.get_hosts().len(), 1);
        assert_eq!(target.config.get_user(), Some("rex"));
        assert_eq!(target.config.get_password(), Some(&b"bone"[..]));
        assert_eq!(target.config.get_dbname(), Some("pets"));
        assert_eq!(target.config.get_options(), Some("-c work_mem=1MB"));
        assert_eq!(target.config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
    }
}

#[test]
fn on_a_network_a_verified_certificate_or_an_explicit_waiver_is_required() {
    let mode = |url: &str| parse(url).map(|targets| targets[0].config.get_ssl_mode());
    for local in ["localhost", "127.0.0.1", "[::1]", "%2Frun%2Fpostgresql"] {
        for sslmode in ["", "?sslmode=disable"] {
            assert_eq!(mode(&format!("postgres://{local}/pets{sslmode}")), Ok(SslMode::Disable));
        }
    }
    for remote in ["db.example.com", "10.0.0.1", "localhost,10.0.0.1"] {
        for sslmode in ["allow", "prefer", "require", "verify-ca", "maybe"] {
            let error = mode(&format!("postgres://{remote}/pets?sslmode={sslmode}")).unwrap_err();
            assert!(error.detail.contains("verify-full"), "{remote} {sslmode}: {error}");
            assert!(error.detail.contains("or disable"), "{remote} {sslmode}: {error}");
        }
        assert_eq!(mode(&format!("postgres://{remote}/pets?sslmode=disable")), Ok(SslMode::Disable));
        for sslmode in ["", "&sslmode=verify-full"] {
            let url = format!("postgres://{remote}/pets?sslrootcert=/does/not+exist{sslmode}");
            let verified = mode(&url).unwrap_err();
            assert!(verified.detail.contains("/does/not+exist"), "certificates are checked: {verified}");
        }
    }
}

#[test]
fn the_password_comes_from_the_url_or_the_environment_or_a_file() {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(&file, "two:5432:pets:rex:of the file\n").unwrap();
    let path = file.path().display().to_string();
    let password = |targets: &[Target], nth: usize| {
        targets[nth].config.get_password().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    };

    let of_file = parse(&format!("postgres://rex@one,two/pets?sslmode=disable&passfile={path}")).unwrap();
    assert_eq!((password(&of_file, 0), password(&of_file, 1)), (None, Some("of the file".into())));

    let environment = |name: &str| match name {
        "PGPASSWORD" => Some("of the environment".to_owned()),
        "PGPASSFILE" => Some(path.clone()),
        _ => None,
    };
    let of_environment = super::parse("postgres://rex@two/pets?sslmode=disable", &environment).unwrap();
    assert_eq!(password(&of_environment, 0), Some("of the environment".into()));
    let of_url =
        super::parse("postgres://rex:of%20the%20url@two/pets?sslmode=disable", &environment).unwrap();
    assert_eq!(password(&of_url, 0), Some("of the url".into()));
}

#[test]
fn a_password_file_that_others_can_read_is_rejected() {
    use std::os::unix::fs::PermissionsExt as _;
    let file = NamedTempFile::new().unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let url = format!("postgres://rex@two/pets?sslmode=disable&passfile={}", file.path().display());
    let error = parse(&url).map(drop).unwrap_err();
    assert!(error.detail.contains("chmod 600"), "{error}");
}

#[test]
fn passwords_are_never_shown() {
    for url in [
        "postgres://rex:hunter2@host/pets",
        "postgres://rex:hunter2@host/pets?sslmode=disable",
        "postgres://rex:hunter2@host/pets?sslmode=require",
        "postgres://rex:hunter2@host/pets?sslmode=nonsense",
        "postgres://rex:hunter2@host/pets?nonsense=1",
        "postgres://rex:hunter2@host:port/pets",
        "postgres://rex:why?hunter2@host/pets",
        "postgres://rex:why/hunter2@host/pets",
        "postgres://rex:why@hunter2@host/pets",
        "postgres://rex:why@not/hunter2?hunter2=@host/pets",
        "postgres://host/pets?password=why@hunter2",
        "postgres://rex@host/pets?password=why@hunter2",
        "postgres://rex:hunter2@",
        "http://rex:hunter2@host",
    ] {
        let shown = format!("{:?}", parse(url).err());
        assert!(!shown.contains("hunter2"), "{url} shows {shown}");
    }
}
