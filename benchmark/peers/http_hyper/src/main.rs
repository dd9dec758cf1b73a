//! An HTTP server on hyper that answers each request with the same bytes, and
//! /long_req/ after a while.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{HeaderValue, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpSocket;

struct Flags {
    port: u16,
    threads: usize,
    body_size: usize,
    delay: Duration,
}

/// Flags are `--name=number`.
fn parse_flags() -> Result<Flags, String> {
    let mut flags = Flags {
        port: 0,
        threads: 1,
        body_size: 64,
        delay: Duration::from_millis(5),
    };
    for argument in std::env::args().skip(1) {
        let wrong = || format!("wrong flag: {argument}");
        let (name, value) = argument.split_once('=').ok_or_else(wrong)?;
        let number: usize = value.parse().map_err(|_| wrong())?;
        match name {
            "--port" => flags.port = number.try_into().map_err(|_| wrong())?,
            "--threads" if number > 0 => flags.threads = number,
            "--body_size" => flags.body_size = number,
            "--delay_ms" => flags.delay = Duration::from_millis(number as u64),
            _ => return Err(wrong()),
        }
    }
    Ok(flags)
}

async fn serve(flags: Flags) -> std::io::Result<()> {
    let address = SocketAddr::from(([127, 0, 0, 1], flags.port));
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let listener = socket.listen(4096)?;
    let body = Bytes::from(vec![b'x'; flags.body_size]);
    loop {
        // A connection that can't be accepted has gone, or comes later.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        };
        stream.set_nodelay(true)?;
        let body = body.clone();
        let answer = service_fn(move |request: Request<Incoming>| {
            let body = body.clone();
            async move {
                if request.uri().path() == "/long_req/" {
                    tokio::time::sleep(flags.delay).await;
                }
                let mut response = Response::new(Full::new(body));
                response
                    .headers_mut()
                    .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
                Ok::<_, Infallible>(response)
            }
        });
        tokio::spawn(async move {
            // An error is a client that went away, or wrote no HTTP.
            let _ = http1::Builder::new()
                .pipeline_flush(true)
                .serve_connection(TokioIo::new(stream), answer)
                .await;
        });
    }
}

fn main() {
    let flags = parse_flags().unwrap_or_else(|error| {
        eprintln!("hyper: {error}");
        std::process::exit(2);
    });
    let served = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(flags.threads)
        .enable_all()
        .build()
        .and_then(|runtime| runtime.block_on(serve(flags)));
    if let Err(error) = served {
        eprintln!("hyper: {error}");
        std::process::exit(1);
    }
}
