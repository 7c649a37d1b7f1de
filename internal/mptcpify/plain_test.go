package mptcpify

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// plainPrelude begins scripts about servers without MPTCP. round() is made anew until it says that the socket was TCP, as
// a process that starts anywhere on the host just then leaves it MPTCP; rounds() prints which were seen.
const plainPrelude = `
f = socket.AF_INET6 if ':' in host else socket.AF_INET
def protocol(s): return {6: 'TCP', 262: 'MPTCP'}[s.getsockopt(socket.SOL_SOCKET, 38)]
def connected(s): s.connect((host, port)); return s
def rounds(round, most):
    for i in range(most):
        s = round(); seen = protocol(s)
        if seen == 'TCP': break
    talk(s)
    print(seen)
`

// lastLine returns the last line that a program printed after it has talked with the server.
func lastLine(t *testing.T, r *relayProcess, server netip.AddrPort, script string) string {
	t.Helper()
	got := end(t, python(t, r, plainPrelude+script, hostPort(server)...))
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	for _, line := range lines[:len(lines)-1] {
		if line+"\n" != wantTalk(server) {
			t.Errorf("a connection: %q", line)
		}
	}
	if got.code != 0 || got.stderr != "" || len(lines) < 2 {
		t.Errorf("%+v", got)
	}
	return lines[len(lines)-1]
}

// eitherFamily returns the server's address of one family for half of the names.
func eitherFamily(name string) string {
	if len(name)%2 == 0 {
		return serverAddr
	}
	return serverAddr6
}

// TestPlainServerGetsTCP: towards a server without MPTCP, a program has a TCP socket if it cannot notice the change.
func TestPlainServerGetsTCP(t *testing.T) {
	for name, round := range map[string]string{
		"blocking":     "lambda: connected(socket.socket(f))",
		"non-blocking": "lambda: socket.create_connection((host, port), 20)",
		"duplicate of its own that it closed": `
def round():
    s = socket.socket(f); d = s.dup(); d.close()
    return connected(s)
`,
		"its number was another socket's": `
def round():
    n = socket.socket(f).detach()
    u = socket.socket(f, socket.SOCK_DGRAM); os.dup2(u.fileno(), n); u.close()
    t = socket.socket(f); os.dup2(t.fileno(), n); t.close()
    return connected(socket.socket(fileno=n))
`,
		"other sockets in an epoll set": `
ep = select.epoll(); other = socket.socket(f); ep.register(other)
round = lambda: connected(socket.socket(f))
`,
		"a server that refuses, then another": `
def round():
    s = socket.socket(f)
    assert s.connect_ex(('2001:db8:1::1' if f == socket.AF_INET6 else '192.0.2.1', port)) == errno.ECONNREFUSED
    return connected(s)
`,
	} {
		t.Run(name, func(t *testing.T) {
			newSite(t)
			r := startRelay(t, modeDead)
			server := plainServer(t, net.JoinHostPort(eitherFamily(name), fmt.Sprint(plainPort)))
			if !strings.Contains(round, "round") {
				round = "round = " + round
			}
			if got := lastLine(t, r, server, round+"\nrounds(round, 2000)\n"); got != "TCP" {
				t.Errorf("always %s", got)
			}
		})
	}
}

// TestPlainServerLeavesShared: a socket that anything else refers to stays as it is.
func TestPlainServerLeavesShared(t *testing.T) {
	for name, round := range map[string]string{
		"duplicate": `
def round():
    s = socket.socket(f); d = s.dup(); s.connect((host, port)); s.close()
    return d
`,
		"in an epoll set": `
ep = select.epoll()
def round():
    s = socket.socket(f); ep.register(s, select.EPOLLIN)
    s.connect((host, port))
    return s
`,
		"inherited by a child": `
def round():
    s = socket.socket(f)
    if os.fork() == 0: os.close(go[1]); os.read(go[0], 1); os._exit(0)
    return connected(s)
go = os.pipe()
`,
		"connected by a child": `
def round():
    s = socket.socket(f); d = s.dup()
    if os.fork() == 0: connected(d); os._exit(0)
    os.wait()
    return s
`,
		"another thread": `
stop = threading.Event(); threading.Thread(target=stop.wait, daemon=True).start()
round = lambda: connected(socket.socket(f))
`,
		"bound": `
def round():
    s = socket.socket(f); s.bind(('', 0))
    return connected(s)
`,
		"its own MPTCP socket": "round = lambda: connected(socket.socket(f, socket.SOCK_STREAM, 262))\n",
		"an option that is not copied": `
def round():
    s = socket.socket(f); s.setsockopt(socket.SOL_SOCKET, 29, 1) # SO_TIMESTAMP
    return connected(s)
`,
	} {
		t.Run(name, func(t *testing.T) {
			newSite(t)
			r := startRelay(t, modeDead)
			server := plainServer(t, net.JoinHostPort(eitherFamily(name), fmt.Sprint(plainPort)))
			if got := lastLine(t, r, server, round+"\nrounds(round, 10)\n"); got != "MPTCP" {
				t.Error(got)
			}
		})
	}
}

// TestPlainKeepsOptions: the TCP socket has what the program has set: options of the socket and the descriptor's flags.
func TestPlainKeepsOptions(t *testing.T) {
	newSite(t)
	r := startRelay(t, modeDead)
	const script = `
import fcntl
S, T, I = socket.SOL_SOCKET, socket.IPPROTO_TCP, socket.IPPROTO_IP
numbers = [(S, socket.SO_REUSEADDR), (S, socket.SO_REUSEPORT), (S, socket.SO_KEEPALIVE), (S, socket.SO_PRIORITY), (S, socket.SO_MARK),
    (S, socket.SO_RCVLOWAT), (T, socket.TCP_NODELAY), (T, socket.TCP_CORK), (T, socket.TCP_KEEPIDLE), (T, socket.TCP_KEEPINTVL),
    (T, socket.TCP_KEEPCNT), (T, socket.TCP_NOTSENT_LOWAT), (I, socket.IP_TOS)]
structs = [(S, socket.SO_SNDTIMEO, struct.pack('qq', 7, 0)), (S, socket.SO_RCVTIMEO, struct.pack('qq', 8, 0)),
    (S, socket.SO_LINGER, struct.pack('ii', 1, 9)), (T, socket.TCP_CONGESTION, b'reno'.ljust(16, b'\0'))]
sizes = [(S, socket.SO_SNDBUF), (S, socket.SO_RCVBUF)]
def all(s): return ([s.getsockopt(*o) for o in numbers + sizes], [s.getsockopt(l, o, len(v)) for l, o, v in structs],
    fcntl.fcntl(s, fcntl.F_GETFD), fcntl.fcntl(s, fcntl.F_GETFL))
keep = False
def round():
    global keep
    s = socket.socket(f); keep = not keep
    for o in numbers: s.setsockopt(*o, 1)
    for o in sizes: s.setsockopt(*o, 50000)
    for o in structs: s.setsockopt(*o)
    s.set_inheritable(keep)
    if f == socket.AF_INET6: s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    before = all(s)
    s.connect((host, port))
    if protocol(s) == 'TCP':
        assert all(s) == before, (before, all(s))
        done.add(keep)
        assert f == socket.AF_INET or s.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 1
    return s
done = set()
while len(done) < 2: s = round()
s.setsockopt(S, socket.SO_RCVLOWAT, 1)
talk(s)
print('both')
`
	for _, addr := range []string{serverAddr, serverAddr6} {
		server := plainServer(t, net.JoinHostPort(addr, fmt.Sprint(plainPort)))
		if got := lastLine(t, r, server, script); got != "both" {
			t.Errorf("%s: %s", addr, got)
		}
	}
}

// TestPlainOfOrdinaryUser: the supervisor needs no rights but those over its own user's programs.
func TestPlainOfOrdinaryUser(t *testing.T) {
	server, r := newServedSite(t, plainPort, modeDead)
	cmd := r.run(t, "/usr/bin/perl", "-MIO::Socket::INET", "-MSocket", "-e", `
for (1 .. 2000) {
	$s = IO::Socket::INET->new(PeerAddr => $ARGV[0]) or die $!;
	if (unpack("i", getsockopt($s, SOL_SOCKET, 38)) == 6) { print "TCP\n"; exit }
}
print "never\n"`, server.String())
	asNobody(t, cmd)
	wantProbe(t, cmd, "TCP\n")
}

// TestPlainWhileSupervisorsAreKilled: no connection fails, and none mixes up its descriptors.
func TestPlainWhileSupervisorsAreKilled(t *testing.T) {
	server, r := newServedSite(t, plainPort, modeDead)
	script := newScript(t, `#!/bin/sh
exec python3 -c '
import socket, select, sys
told = False
while not select.select([sys.stdin], [], [], 0)[0]:
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    plain = s.getsockopt(socket.SOL_SOCKET, 38) == 6
    s.sendall(b"hello\n")
    assert s.recv(6, socket.MSG_WAITALL) == b"hello\n"
    s.close()
    if plain and not told: print("TCP", flush=True); told = True
' "$@"
`)
	cmd := r.run(t, append([]string{script}, hostPort(server)...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	in, out := started(t, cmd)
	defer func() { cmd.Process.Kill() }()
	if got, err := io.ReadAll(io.LimitReader(out, 4)); err != nil || string(got) != "TCP\n" {
		t.Fatalf("%q %v %s", got, err, stderr.String())
	}
	killSupervisors(t, script)
	if _, err := io.WriteString(in, "\n"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, stderr.String())
	}
}

// A thread that has company is known for a while, and then looked for again.
func TestThreadsAreKnown(t *testing.T) {
	now, own := time.Now(), uint32(unix.Gettid())
	alone := exec.Command("sleep", "60")
	if err := alone.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = alone.Process.Kill(); _ = alone.Wait() }()
	all := threads{seen: map[uint32]time.Time{}}
	if tid := uint32(alone.Process.Pid); !all.look(tid, now) || all.isSeveral(tid, now) {
		t.Error("a process with one thread is taken for one with several")
	}
	if all.isSeveral(own, now) || all.look(own, now) || !all.isSeveral(own, now) {
		t.Error("this process has several threads")
	}
	if !all.isSeveral(own, now.Add(severalFor-1)) || all.isSeveral(own, now.Add(severalFor)) {
		t.Errorf("it does not count for %v", severalFor)
	}
	if all.look(1<<31-1, now) || all.isSeveral(1<<31-1, now) {
		t.Error("no thread has this number")
	}
}
