/* A mock OpenAI engine that costs next to nothing, so that what is measured is the proxy in front of it.
 *
 *   mock_engine PORT [PORT...]      one thread, epoll, listens on 127.0.0.1
 *
 * POST bodies decide:  no "stream":true      one JSON answer at once
 *                      "stream":true         65 events at once, one chunk each, all in one write
 *                      ... and "scattered"   65 events at once, one write each
 *                      ... and "paced"       65 events, 10 ms apart
 *                      ... and "hold"        65 events, 1 s apart
 * With "include_usage":true one usage event more, before [DONE]. Every other request gets a JSON answer that satisfies
 * the health checks and discovery of the proxies under test.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define EVENTS 65
#define INPUT 65536

struct conn {
    int fd;
    int listener;
    size_t have;
    char *in;
    int sent;      /* events sent of the running stream */
    int usage;     /* the client asked for it */
    int queue;     /* -1: no stream running, else the index of its timer queue */
    long due;      /* ns */
    struct conn *next, *prev;
};

/* All streams of one kind have the same interval, so each queue stays sorted by due time when a stream is put back at its end;
 * a new stream starts at a random phase, as streams of different users do, and is put into its place. */
static struct { long interval; struct conn *first, *last; } queues[2] = {{10000000L, 0, 0}, {1000000000L, 0, 0}};

static char chunk_text[EVENTS + 1][512];
static size_t chunk_size[EVENTS + 1];
static const char stream_head[] =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
static char chat_answer[1024], other_answer[1024];
static char burst[2][65536]; /* without and with the usage event */
static size_t burst_size[2];

static long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void render(void) {
    const char *base = "{\"id\":\"chatcmpl-8f14e45fceea167a\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"m\"";
    char text[480];
    for (int i = 0; i < EVENTS; i++) {
        if (i == EVENTS - 1)
            snprintf(text, sizeof text, "data: [DONE]\n\n");
        else
            snprintf(text, sizeof text,
                     "data: %s,\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word%02d\"},\"logprobs\":null,\"finish_reason\":%s}]}\n\n",
                     base, i, i == EVENTS - 2 ? "\"stop\"" : "null");
        chunk_size[i] = (size_t)snprintf(chunk_text[i], sizeof chunk_text[i], "%zx\r\n%s\r\n%s", strlen(text), text,
                                         i == EVENTS - 1 ? "0\r\n\r\n" : "");
    }
    snprintf(text, sizeof text,
             "data: %s,\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":64,\"total_tokens\":76}}\n\n", base);
    chunk_size[EVENTS] = (size_t)snprintf(chunk_text[EVENTS], sizeof chunk_text[EVENTS], "%zx\r\n%s\r\n", strlen(text), text);
    for (int usage = 0; usage < 2; usage++) {
        burst_size[usage] = (size_t)sprintf(burst[usage], "%s", stream_head);
        for (int i = 0; i < EVENTS; i++) {
            if (usage && i == EVENTS - 1)
                burst_size[usage] += (size_t)sprintf(burst[usage] + burst_size[usage], "%s", chunk_text[EVENTS]);
            burst_size[usage] += (size_t)sprintf(burst[usage] + burst_size[usage], "%s", chunk_text[i]);
        }
    }
    const char *body = "{\"id\":\"chatcmpl-8f14e45fceea167a\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"m\","
                       "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"The sky is blue because air scatters "
                       "short waves more than long ones.\"},\"logprobs\":null,\"finish_reason\":\"stop\"}],"
                       "\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":14,\"total_tokens\":26}}";
    snprintf(chat_answer, sizeof chat_answer, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s",
             strlen(body), body);
    body = "{\"status\":\"ok\",\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\",\"created\":1700000000,"
           "\"owned_by\":\"mock\",\"max_model_len\":4096}],\"model_path\":\"m\",\"served_model_name\":\"m\",\"is_generation\":true,"
           "\"version\":\"0.1\",\"model_type\":\"llama\",\"tokenizer_path\":\"m\"}";
    snprintf(other_answer, sizeof other_answer, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s",
             strlen(body), body);
}

static int put(struct conn *c, const char *data, size_t size) {
    while (size) {
        ssize_t n = send(c->fd, data, size, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) {
            struct pollfd p = {c->fd, POLLOUT, 0};
            if (poll(&p, 1, 1000) <= 0) return -1;
            continue;
        }
        if (n <= 0) return -1;
        data += n;
        size -= (size_t)n;
    }
    return 0;
}

static void enqueue(struct conn *c) {
    struct conn *after = queues[c->queue].last;
    while (after && after->due > c->due) after = after->prev;
    c->prev = after;
    c->next = after ? after->next : queues[c->queue].first;
    if (after) after->next = c; else queues[c->queue].first = c;
    if (c->next) c->next->prev = c; else queues[c->queue].last = c;
}

static void dequeue(struct conn *c) {
    if (c->prev) c->prev->next = c->next; else queues[c->queue].first = c->next;
    if (c->next) c->next->prev = c->prev; else queues[c->queue].last = c->prev;
}

static void drop(struct conn *c) {
    if (c->queue >= 0) dequeue(c);
    close(c->fd);
    free(c->in);
    free(c);
}

/* Sends the next event; 1 when it was the last one. */
static int next_event(struct conn *c) {
    int i = c->sent++;
    if (i == EVENTS - 1 && c->usage && put(c, chunk_text[EVENTS], chunk_size[EVENTS]) < 0) return -1;
    if (put(c, chunk_text[i], chunk_size[i]) < 0) return -1;
    return i == EVENTS - 1;
}

static int answer(struct conn *c, const char *head, const char *body, size_t body_size) {
    if (strncmp(head, "POST ", 5)) return put(c, other_answer, strlen(other_answer));
    if (!memmem(body, body_size, "\"stream\":true", 13)) return put(c, chat_answer, strlen(chat_answer));
    c->sent = 0;
    c->usage = memmem(body, body_size, "\"include_usage\":true", 20) != 0;
    int kind = memmem(body, body_size, "paced", 5) ? 0 : memmem(body, body_size, "hold", 4) ? 1 : -1;
    int scattered = memmem(body, body_size, "scattered", 9) != 0;
    if (kind < 0 && !scattered) return put(c, burst[c->usage], burst_size[c->usage]);
    if (put(c, stream_head, sizeof stream_head - 1) < 0) return -1;
    if (scattered) {
        int done;
        while (!(done = next_event(c))) {}
        return done < 0 ? -1 : 0;
    }
    c->queue = kind;
    if (next_event(c) < 0) return -1;
    c->due = now_ns() + (long)((double)queues[kind].interval * drand48());
    enqueue(c);
    return 0;
}

/* Handles one request if it is whole: 1 handled, 0 more is needed, -1 broken. */
static int handle(struct conn *c) {
    char *end = memmem(c->in, c->have, "\r\n\r\n", 4);
    if (!end) return c->have == INPUT ? -1 : 0;
    size_t head = (size_t)(end - c->in) + 4, length = 0;
    *end = 0;
    char *line = strcasestr(c->in, "\r\ncontent-length:");
    int chunked = strcasestr(c->in, "\r\ntransfer-encoding: chunked") != 0;
    if (line) length = strtoul(line + 17, 0, 10);
    *end = '\r';
    if (chunked) {
        char *last = memmem(c->in + head, c->have - head, "0\r\n\r\n", 5);
        if (!last) return c->have == INPUT ? -1 : 0;
        length = (size_t)(last - (c->in + head)) + 5;
    }
    if (head + length > INPUT) return -1;
    if (c->have < head + length) return 0;
    int result = answer(c, c->in, c->in + head, length);
    c->have -= head + length;
    memmove(c->in, c->in + head + length, c->have);
    return result < 0 ? -1 : 1;
}

static void set_up(int fd) {
    int one = 1;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

int main(int argc, char **argv) {
    int ep = epoll_create1(0);
    render();
    for (int i = 1; i < argc; i++) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(argv[i])), .sin_addr = {htonl(INADDR_LOOPBACK)}};
        int one = 1;
        struct conn *c = calloc(1, sizeof *c);
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        c->listener = 1;
        c->queue = -1;
        setsockopt(c->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(c->fd, (struct sockaddr *)&a, sizeof a) || listen(c->fd, 4096)) {
            perror("mock_engine");
            return 1;
        }
        set_up(c->fd);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
    }
    for (;;) {
        long now = now_ns(), soonest = -1;
        for (int q = 0; q < 2; q++) {
            struct conn *c;
            while ((c = queues[q].first) && c->due <= now) {
                dequeue(c);
                int kind = c->queue, done = next_event(c);
                c->queue = -1;
                if (done < 0) {
                    shutdown(c->fd, SHUT_RDWR); /* epoll reports it and drops it */
                } else if (!done) {
                    c->queue = kind;
                    c->due += queues[kind].interval;
                    enqueue(c);
                }
            }
            if (c && (soonest < 0 || c->due < soonest)) soonest = c->due;
        }
        struct epoll_event ready[256];
        struct timespec limit = {0, 0}, *wait = 0;
        if (soonest >= 0) {
            long left = soonest - now_ns();
            if (left < 0) left = 0;
            limit.tv_sec = left / 1000000000L;
            limit.tv_nsec = left % 1000000000L;
            wait = &limit;
        }
        int n = epoll_pwait2(ep, ready, 256, wait, 0);
        for (int i = 0; i < n; i++) {
            struct conn *c = ready[i].data.ptr;
            if (c->listener) {
                int fd;
                while ((fd = accept(c->fd, 0, 0)) >= 0) {
                    struct conn *d = calloc(1, sizeof *d);
                    d->fd = fd;
                    d->queue = -1;
                    d->in = malloc(INPUT + 1);
                    set_up(fd);
                    struct epoll_event e = {.events = EPOLLIN, .data.ptr = d};
                    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
                }
                continue;
            }
            ssize_t got = recv(c->fd, c->in + c->have, INPUT - c->have, 0);
            if (got == 0 || (got < 0 && errno != EAGAIN)) {
                drop(c);
                continue;
            }
            if (got < 0) continue;
            c->have += (size_t)got;
            int state = 1;
            while (c->have && c->queue < 0 && (state = handle(c)) == 1) {}
            if (state < 0) drop(c);
        }
    }
}
