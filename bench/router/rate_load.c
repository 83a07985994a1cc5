/* An open-loop load generator: requests start at a fixed rate whatever the answers do, latency counts from the planned start.
 *
 *   rate_load PORT RATE SECONDS CONNECTIONS REQUEST_FILE
 *
 * Prints one line of JSON: requests done, errors, late (no connection free within 1 s), and latencies in microseconds.
 * Answers must carry content-length.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct conn { int fd, busy; long planned; size_t have; char in[16384]; };

static long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    long x = *(const long *)a, y = *(const long *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    int port = atoi(argv[1]), count = atoi(argv[4]), ep = epoll_create1(0);
    double rate = atof(argv[2]), seconds = atof(argv[3]);
    static char request[65536];
    FILE *file = fopen(argv[5], "rb");
    size_t size = file ? fread(request, 1, sizeof request, file) : 0;
    if (!size) { perror(argv[5]); return 1; }
    struct conn *conns = calloc((size_t)count, sizeof *conns), **idle = calloc((size_t)count, sizeof *idle);
    int free_count = 0;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    for (int i = 0; i < count; i++) {
        int one = 1;
        conns[i].fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(conns[i].fd, (struct sockaddr *)&a, sizeof a)) { perror("connect"); return 1; }
        setsockopt(conns[i].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        fcntl(conns[i].fd, F_SETFL, O_NONBLOCK);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = &conns[i]};
        epoll_ctl(ep, EPOLL_CTL_ADD, conns[i].fd, &e);
        idle[free_count++] = &conns[i];
    }
    long total = (long)(rate * seconds), step = (long)(1e9 / rate), started = 0, done = 0, errors = 0, late = 0;
    long *latency = calloc((size_t)total + 1, sizeof *latency), begin = now_ns() + 1000000, stop = begin + (long)(seconds * 1e9) + 2000000000L;
    while (done + errors + late < total && now_ns() < stop) {
        long now = now_ns();
        while (started < total && begin + started * step <= now) {
            if (!free_count) {
                if (now - (begin + started * step) < 1000000000L) break;
                late++;
                started++;
                continue;
            }
            struct conn *c = idle[--free_count];
            c->planned = begin + started++ * step;
            c->busy = 1;
            c->have = 0;
            if (send(c->fd, request, size, MSG_NOSIGNAL) != (ssize_t)size) errors++;
        }
        long next = started < total ? begin + started * step : stop, left = next - now_ns();
        struct timespec limit = {0, left > 0 && free_count ? left % 1000000000L : free_count ? 0 : 1000000L};
        struct epoll_event ready[64];
        int n = epoll_pwait2(ep, ready, 64, &limit, 0);
        for (int i = 0; i < n; i++) {
            struct conn *c = ready[i].data.ptr;
            ssize_t got = recv(c->fd, c->in + c->have, sizeof c->in - 1 - c->have, 0);
            if (got <= 0) {
                if (got < 0 && errno == EAGAIN) continue;
                fprintf(stderr, "connection lost\n");
                return 1;
            }
            c->have += (size_t)got;
            c->in[c->have] = 0;
            char *end = strstr(c->in, "\r\n\r\n"), *line = end ? strcasestr(c->in, "\r\ncontent-length:") : 0;
            if (!line || c->have < (size_t)(end + 4 - c->in) + strtoul(line + 17, 0, 10)) continue;
            if (strncmp(c->in + 9, "200", 3)) errors++;
            else latency[done++] = now_ns() - c->planned;
            c->busy = 0;
            idle[free_count++] = c;
        }
    }
    qsort(latency, (size_t)done, sizeof *latency, by_value);
#define AT(q) (done ? latency[(long)((double)(done - 1) * (q))] / 1e3 : 0.0)
    printf("{\"done\":%ld,\"errors\":%ld,\"late\":%ld,\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"p999\":%.1f}\n", done, errors,
           late + (total - started), AT(0.5), AT(0.9), AT(0.99), AT(0.999));
    return 0;
}
