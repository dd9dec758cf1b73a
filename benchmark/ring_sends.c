// The cost of a system call for each send in an event loop: the loop answers or
// passes on all that one look for events has brought, and sends each piece by
// itself, at once or behind the last one's receiving, or all by one
// io_uring_enter(). docs/decisions/0039-sends-of-one-round.md
//
//   apt-get install liburing-dev
//   gcc -O2 benchmark/ring_sends.c -o ring_sends -luring -lpthread
//   ring_sends now|late|ring PORT THREADS http BODY_SIZE   # HTTP, one answer
//   ring_sends now|late|ring PORT THREADS relay PORT       # passes bytes on
//
// A measurement, no server: requests are recognised by their last four bytes,
// input must fit one piece, and bytes that a socket doesn't take at once end
// the program (with a ring: is lost).
#define _GNU_SOURCE
#include <errno.h>
#include <liburing.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { kEvents = 256, kPiece = 16384, kDescriptors = 65536, kSpinUs = 50 };

enum { kNow, kLate, kRing } how;

struct send {
  int fd;
  const char* data;
  size_t size;
};

struct loop {
  int epoll;
  struct io_uring ring;
  struct send sends[kEvents];
  int send_count;
  char input[kEvents][kPiece];
};

static int upstream_port;          // 0: answers by itself.
static int other[kDescriptors];    // The other end of a relayed connection.
static char* answer;
static size_t answer_size;

static void check(int ok, const char* what) {
  if (ok) return;
  perror(what);
  exit(1);
}

static void send_one(const struct send* s) {
  const ssize_t sent =
      send(s->fd, s->data, s->size, MSG_NOSIGNAL | MSG_DONTWAIT);
  const int gone =
      sent < 0 && (errno == EPIPE || errno == ECONNRESET || errno == EBADF);
  check(gone || sent == (ssize_t)s->size, "a send that isn't whole");
}

// Sends are executed within the system call, one after another; a success says
// nothing. The ring is emptied of those whose peer has gone.
static void send_by_ring(struct loop* l) {
  for (int i = 0; i < l->send_count; ++i) {
    const struct send* const s = &l->sends[i];
    struct io_uring_sqe* const entry = io_uring_get_sqe(&l->ring);
    io_uring_prep_send(entry, s->fd, s->data, s->size,
                       MSG_NOSIGNAL | MSG_DONTWAIT);
    entry->flags |= IOSQE_CQE_SKIP_SUCCESS;
  }
  io_uring_submit(&l->ring);
  struct io_uring_cqe* result;
  while (io_uring_peek_cqe(&l->ring, &result) == 0) {
    errno = -result->res;
    check(errno == EPIPE || errno == ECONNRESET || errno == EBADF, "a send");
    io_uring_cqe_seen(&l->ring, result);
  }
}

static void queue_send(struct loop* l, int fd, const char* data, size_t size) {
  const struct send s = {fd, data, size};
  if (how == kNow) {
    send_one(&s);
  } else {
    l->sends[l->send_count++] = s;
  }
}

static void end_round(struct loop* l) {
  if (how == kRing) {
    if (l->send_count != 0) send_by_ring(l);
  } else {
    for (int i = 0; i < l->send_count; ++i) send_one(&l->sends[i]);
  }
  l->send_count = 0;
}

static void on_event(struct loop* l, int fd, char* input) {
  const ssize_t size = recv(fd, input, kPiece, MSG_DONTWAIT);
  if (size < 0 && errno == EAGAIN) return;
  if (size <= 0) {
    if (upstream_port != 0) shutdown(other[fd], SHUT_RDWR);
    close(fd);
  } else if (upstream_port != 0) {
    queue_send(l, other[fd], input, (size_t)size);
  } else if (size >= 4 && memcmp(input + size - 4, "\r\n\r\n", 4) == 0) {
    queue_send(l, fd, answer, answer_size);
  }
}

static int wait_for_events(int epoll, struct epoll_event* events) {
  struct timespec begin, now;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (;;) {
    const int n = epoll_wait(epoll, events, kEvents, 0);
    if (n != 0) return n;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if ((now.tv_sec - begin.tv_sec) * 1000000 +
            (now.tv_nsec - begin.tv_nsec) / 1000 >=
        kSpinUs) {
      return epoll_wait(epoll, events, kEvents, -1);
    }
    sched_yield();
  }
}

static void* run(void* argument) {
  struct loop* const l = argument;
  prctl(PR_SET_TIMERSLACK, 1000);
  struct io_uring_params p = {.flags = IORING_SETUP_SINGLE_ISSUER |
                                       IORING_SETUP_DEFER_TASKRUN};
  if (how == kRing) {
    check(io_uring_queue_init_params(kEvents, &l->ring, &p) == 0, "ring");
    io_uring_register_ring_fd(&l->ring);
  }
  struct epoll_event events[kEvents];
  for (;;) {
    const int n = wait_for_events(l->epoll, events);
    for (int i = 0; i < n; ++i) on_event(l, events[i].data.fd, l->input[i]);
    end_round(l);
  }
  return NULL;
}

static int connect_upstream(void) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const struct sockaddr_in address = {
      .sin_family = AF_INET,
      .sin_port = htons((uint16_t)upstream_port),
      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  check(connect(fd, (const struct sockaddr*)&address, sizeof(address)) == 0,
        "connect");
  return fd;
}

static void add(int epoll, int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.fd = fd};
  check(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
}

static int listen_on(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  const struct sockaddr_in address = {
      .sin_family = AF_INET,
      .sin_port = htons((uint16_t)port),
      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  check(bind(fd, (const struct sockaddr*)&address, sizeof(address)) == 0 &&
            listen(fd, 4096) == 0,
        "listen");
  return fd;
}

static void make_answer(size_t body_size) {
  answer = malloc(body_size + 200);
  answer_size = (size_t)sprintf(
      answer,
      "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n"
      "Content-Type: text/plain\r\nConnection: keep-alive\r\n\r\n",
      body_size);
  memset(answer + answer_size, 'a', body_size);
  answer_size += body_size;
}

int main(int argc, char** argv) {
  const char* const names[] = {"now", "late", "ring"};
  int known = -1;
  for (int i = 0; argc == 6 && i < 3; ++i) {
    if (strcmp(argv[1], names[i]) == 0) known = i;
  }
  if (known < 0) {
    fprintf(stderr, "the top of ring_sends.c says how to use it\n");
    return 2;
  }
  how = known;
  if (strcmp(argv[4], "relay") == 0) {
    upstream_port = atoi(argv[5]);
  } else {
    make_answer((size_t)atoi(argv[5]));
  }
  const int listener = listen_on(atoi(argv[2]));
  const int threads = atoi(argv[3]);
  struct loop* const loops = calloc((size_t)threads, sizeof(*loops));
  for (int i = 0; i < threads; ++i) {
    pthread_t thread;
    loops[i].epoll = epoll_create1(0);
    pthread_create(&thread, NULL, run, &loops[i]);
  }
  for (int i = 0;; i = (i + 1) % threads) {
    const int fd = accept(listener, NULL, NULL);
    check(fd >= 0 && fd < kDescriptors, "accept");
    if (upstream_port != 0) {
      const int upstream = connect_upstream();
      other[fd] = upstream;
      other[upstream] = fd;
      add(loops[i].epoll, upstream);
    }
    add(loops[i].epoll, fd);
  }
}
