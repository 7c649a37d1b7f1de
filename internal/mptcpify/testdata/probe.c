// probe prints what the kernel made of each socket it asks for, one a line:
// name, SO_PROTOCOL, close-on-exec, non-blocking, uid, and whether it is in the
// program's own network namespace. With an argument it first takes that user id.
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

static uint64_t namespace_of(int fd)
{
	uint64_t cookie = 0;
	socklen_t size = sizeof(cookie);

	getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &size);
	return cookie;
}

static void probe(const char *name, int domain, int type, int protocol)
{
	int got = -1;
	socklen_t size = sizeof(got);
	struct stat st = {0};
	int udp = socket(AF_INET, SOCK_DGRAM, 0); // nobody swaps this one
	int fd = socket(domain, type, protocol);

	if (fd < 0) {
		printf("%s error %d\n", name, errno);
		return;
	}
	getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &got, &size);
	fstat(fd, &st);
	printf("%s %d %d %d %u %s\n", name, got, !!(fcntl(fd, F_GETFD) & FD_CLOEXEC),
	       !!(fcntl(fd, F_GETFL) & O_NONBLOCK), st.st_uid,
	       namespace_of(fd) == namespace_of(udp) ? "home" : "abroad");
	close(fd);
	close(udp);
}

static void *thread(void *name)
{
	probe(name, AF_INET, SOCK_STREAM, 0);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t t;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc > 1 && (setgid(atoi(argv[1])) || setuid(atoi(argv[1]))))
		return 1;
	probe("tcp4", AF_INET, SOCK_STREAM, 0);
	probe("tcp4-named", AF_INET, SOCK_STREAM, IPPROTO_TCP);
	probe("tcp4-cloexec", AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	probe("tcp4-nonblock", AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	probe("tcp4-both", AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
	probe("tcp6", AF_INET6, SOCK_STREAM, 0);
	probe("udp4", AF_INET, SOCK_DGRAM, 0);
	probe("udp6", AF_INET6, SOCK_DGRAM, IPPROTO_UDP);
	probe("unix", AF_UNIX, SOCK_STREAM, 0);
	probe("bad-type", AF_INET, SOCK_STREAM | 0x100000, 0);
	probe("mptcp", AF_INET, SOCK_STREAM, IPPROTO_MPTCP);
	pthread_create(&t, NULL, thread, "thread");
	pthread_join(t, NULL);
	if (fork() == 0) {
		probe("child", AF_INET, SOCK_STREAM, 0);
		_exit(0);
	}
	wait(NULL);
	return 0;
}
