// An HTTP server on net/http that answers each request with the same bytes, and
// /long_req/ after a while.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"time"
)

func main() {
	port := flag.Int("port", 0, "port of 127.0.0.1 to listen on")
	threads := flag.Int("threads", 1, "threads that run Go code")
	bodySize := flag.Int("body_size", 64, "bytes of the answer's body")
	delay := flag.Int("delay_ms", 5, "how long /long_req/ takes")
	flag.Parse()
	if flag.NArg() != 0 || *threads < 1 || *bodySize < 0 || *delay < 0 {
		fmt.Fprintln(os.Stderr, "http_go: wrong flags; -help lists them")
		os.Exit(2)
	}
	runtime.GOMAXPROCS(*threads)

	body := bytes.Repeat([]byte("x"), *bodySize)
	length := []string{strconv.Itoa(*bodySize)}
	contentType := []string{"text/plain"}
	answer := func(w http.ResponseWriter) {
		// Set directly: no names to bring into canonical form, nothing to
		// sniff, and no chunks.
		w.Header()["Content-Length"] = length
		w.Header()["Content-Type"] = contentType
		w.Write(body)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/long_req/" {
			time.Sleep(time.Duration(*delay) * time.Millisecond)
		}
		answer(w)
	})
	address := fmt.Sprintf("127.0.0.1:%d", *port)
	log.Fatal(http.ListenAndServe(address, handler))
}
