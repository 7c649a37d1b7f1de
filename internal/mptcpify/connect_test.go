package mptcpify

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/ask"
)

// newSite moves the test into a namespace with the addresses of the tests.
func newSite(t testing.TB) {
	t.Helper()
	needMPTCP(t)
	newNamespace(t)
	for _, addr := range []string{serverAddr + "/32", converterAddr + "/32", serverAddr6 + "/128", converterAddr6 + "/128"} {
		if text, err := exec.Command("ip", "addr", "add", addr, "dev", "lo", "nodad").CombinedOutput(); err != nil {
			t.Fatalf("%s: %v %s", addr, err, text)
		}
	}
}

// newServedSite makes a site with a plain server at a port, 0 for any, and a relay.
func newServedSite(t testing.TB, port int, mode string) (server netip.AddrPort, r *relayProcess) {
	t.Helper()
	newSite(t)
	return plainServer(t, fmt.Sprintf("%s:%d", serverAddr, port)), startRelay(t, mode)
}

// relayProcess is a running fake.
type relayProcess struct {
	socket string
	cmd    *exec.Cmd

	mu   sync.Mutex
	said []string
}

func startRelay(t testing.TB, mode string) *relayProcess {
	t.Helper()
	dir := t.TempDir()
	openToAll(t, dir)
	r := &relayProcess{socket: filepath.Join(dir, ask.SocketName)}
	r.start(t, mode)
	return r
}

func (r *relayProcess) start(t testing.TB, mode string) {
	t.Helper()
	r.cmd = mark(t, fakeMark, r.socket, mode)
	r.cmd.Stderr = os.Stderr
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd := r.cmd
	ready := make(chan bool, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		lines := bufio.NewScanner(out)
		ready <- lines.Scan()
		for lines.Scan() {
			r.mu.Lock()
			r.said = append(r.said, lines.Text())
			r.mu.Unlock()
		}
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
	})
	if !<-ready {
		t.Fatal("the fake relay did not start")
	}
}

// stop kills the relay.
func (r *relayProcess) stop(t testing.TB) {
	t.Helper()
	r.cmd.Process.Kill()
	eventually(t, "the relay's socket is closed", func() bool { return !ask.Listens(r.socket) })
}

// heard waits until the fake has printed a line.
func (r *relayProcess) heard(t testing.TB, line string) {
	t.Helper()
	eventually(t, line, func() bool { return slices.Contains(r.lines(), line) })
}

// lines returns the lines that the fake has printed so far.
func (r *relayProcess) lines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.said)
}

// ledNothing checks that no connection went to the relay or a converter so far.
func (r *relayProcess) ledNothing(t *testing.T) {
	t.Helper()
	if lines := r.lines(); slices.ContainsFunc(lines, func(l string) bool { return !strings.HasPrefix(l, "asked ") }) {
		t.Errorf("not all connections went directly: %q", lines)
	}
}

// run is `dcol run` with this relay.
func (r *relayProcess) run(t testing.TB, argv ...string) *exec.Cmd {
	cmd := run(t, argv...)
	cmd.Env = append(os.Environ(), relayVariable+"="+r.socket)
	return cmd
}

const payload = 3 << 20

// plainServer is a TCP server that sends back what it gets, then payload bytes.
func plainServer(t testing.TB, addr string) netip.AddrPort {
	t.Helper()
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	l, err := config.Listen(context.Background(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				line, err := bufio.NewReader(conn).ReadString('\n')
				if err != nil {
					return
				}
				_, _ = io.WriteString(conn, line)
				_, _ = io.CopyN(conn, zeros{}, payload)
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// python runs a script in which talk(socket) exchanges bytes with the plain server and prints what it sees.
func python(t testing.TB, r *relayProcess, script string, args ...string) *exec.Cmd {
	t.Helper()
	needProgram(t, "python3")
	const prelude = `
import sys, os, socket, select, threading, time, errno, struct
host, port = sys.argv[1], int(sys.argv[2])
def talk(s):
    s.settimeout(20)
    peer = s.getpeername()
    s.sendall(b'hello\n')
    got = b''
    while True:
        b = s.recv(1 << 16)
        if not b: break
        got += b
    print('%s %d %s %d' % (peer[0], peer[1], got[:5].decode(), len(got) - 6))
`
	return r.run(t, append([]string{"python3", "-c", prelude + script}, args...)...)
}

func hostPort(a netip.AddrPort) []string {
	return []string{a.Addr().String(), strconv.Itoa(int(a.Port()))}
}

// wantTalk is what talk prints.
func wantTalk(a netip.AddrPort) string {
	return fmt.Sprintf("%s %d hello %d\n", a.Addr(), a.Port(), payload)
}

const (
	blockingScript = "s = socket.create_connection((host, port)); talk(s)\n"
	timedScript    = "s = socket.create_connection((host, port), 20); talk(s)\n"
	asyncioScript  = `
import asyncio
async def main():
    r, w = await asyncio.open_connection(host, port)
    peer = w.get_extra_info('peername')
    w.write(b'hello\n')
    got = await r.read()
    print('%s %d %s %d' % (peer[0], peer[1], got[:5].decode(), len(got) - 6))
asyncio.run(main())
`
	// The program registers the socket before it connects.
	epollScript = `
f = socket.AF_INET6 if ':' in host else socket.AF_INET
s = socket.socket(f); ep = select.epoll(); ep.register(s, select.EPOLLIN | select.EPOLLOUT)
%s
assert s.connect_ex((host, port)) in (0, errno.EINPROGRESS)
while not ep.poll(20)[0][1] & select.EPOLLOUT: pass
s.send(b'hello\n')
ep.modify(s, select.EPOLLIN)
assert ep.poll(20) == [(s.fileno(), select.EPOLLIN)]
s.setblocking(True)
got = b''
while True:
    b = s.recv(1 << 16)
    if not b: break
    got += b
peer = s.getpeername()
print('%%s %%d %%s %%d' %% (peer[0], peer[1], got[:5].decode(), len(got) - 6))
`
	forkScript = `
s = socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET); d = s.dup()
if os.fork() == 0:
    d.connect((host, port)); os._exit(0)
os.wait()
talk(s)
`
	threadScript = `
s = socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET)
t = threading.Thread(target=lambda: s.connect((host, port))); t.start(); t.join()
talk(s)
`
	passedScript = `
f = socket.AF_INET6 if ':' in host else socket.AF_INET
a, b = socket.socketpair()
if os.fork() == 0:
    s = socket.socket(fileno=socket.recv_fds(b, 1, 1)[1][0]); s.connect((host, port)); b.send(b'x'); os._exit(0)
s = socket.socket(f); socket.send_fds(a, [b'x'], [s.fileno()]); a.recv(1)
talk(s)
`
	execScript = `
s = socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET); s.set_inheritable(True)
if os.fork() == 0:
    connect = 'import socket, sys; socket.socket(fileno=int(sys.argv[1])).connect((sys.argv[2], int(sys.argv[3])))'
    os.execv(sys.executable, [sys.executable, '-c', connect, str(s.fileno()), host, str(port)])
os.wait()
talk(s)
`
	// A descriptor becomes another socket's between socket() and connect(), and back; another socket listens in the end.
	mindScript = `
f = socket.AF_INET6 if ':' in host else socket.AF_INET
n = socket.socket(f).detach()
u = socket.socket(f, socket.SOCK_DGRAM); os.dup2(u.fileno(), n); u.connect((host, 99)); u.close()
d = socket.socket(fileno=n); d.connect((host, 99))
l = socket.socket(f); l.bind(('', 0)); l.listen()
t = socket.socket(f); os.dup2(t.fileno(), n); t.close(); d.detach()
s = socket.socket(fileno=n); s.setblocking(False); s.setblocking(True); s.connect((host, port))
talk(s)
`
)

// TestConnectThroughConverter runs programs that connect in usual ways, and checks in the relay's log which way their
// connections went.
func TestConnectThroughConverter(t *testing.T) {
	for _, c := range []struct {
		name, script string
		way          string
	}{
		{"blocking", blockingScript, "converted"},
		{"non-blocking", timedScript, "relayed"},
		{"asyncio", asyncioScript, "relayed"},
		{"epoll before blocking connect", fmt.Sprintf(epollScript, ""), "converted"},
		{"epoll before non-blocking connect", fmt.Sprintf(epollScript, "s.setblocking(False)"), "relayed"},
		{"duplicate connected by a child", forkScript, "converted"},
		{"connected by a thread", threadScript, "converted"},
		{"passed to another process", passedScript, "converted"},
		{"connected after fork and exec", execScript, "converted"},
		{"another socket's descriptor in between", mindScript, "converted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			newSite(t)
			r := startRelay(t, modeWorks)
			for _, addr := range []string{serverAddr, serverAddr6} {
				server := plainServer(t, net.JoinHostPort(addr, "0"))
				wantProbe(t, python(t, r, c.script, hostPort(server)...), wantTalk(server))
				if c.way == "relayed" {
					r.heard(t, "relayed "+server.String())
					continue
				}
				r.heard(t, fmt.Sprintf("converted %v true true <nil>", server))
				r.heard(t, fmt.Sprintf("learned %v true", server))
			}
		})
	}
}

// TestRelayAloneReachesConverter has blocking programs connect while only the relay may connect to the converter. They get the
// server's errno.
func TestRelayAloneReachesConverter(t *testing.T) {
	newSite(t)
	r := startRelay(t, modeTunnelled)
	for _, addr := range []string{serverAddr, serverAddr6} {
		server := plainServer(t, net.JoinHostPort(addr, "0"))
		wantProbe(t, python(t, r, blockingScript, hostPort(server)...), wantTalk(server))
		r.heard(t, fmt.Sprintf("converted %v true true <nil>", server))
		closed := netip.AddrPortFrom(server.Addr(), 9)
		wantProbe(t, python(t, r, errnoScript, hostPort(closed)...), "ECONNREFUSED\n")
		r.heard(t, fmt.Sprintf("converted %v true true <nil>", closed))
	}
}

// TestEarlierRelayAloneReachesConverter is the same with a relay of an older version, to which blocking programs are connected
// like others.
func TestEarlierRelayAloneReachesConverter(t *testing.T) {
	newSite(t)
	r := startRelay(t, modeEarlier)
	for _, addr := range []string{serverAddr, serverAddr6} {
		server := plainServer(t, net.JoinHostPort(addr, "0"))
		wantProbe(t, python(t, r, blockingScript, hostPort(server)...), wantTalk(server))
		r.heard(t, "relayed "+server.String())
	}
}

// TestOtherFamily connects IPv4 sockets while the converter has an IPv6 address only. A blocking one connects directly, so
// that it gets the server's errno. One that does not wait goes to the relay, and a blocking one of both families reaches the
// converter itself.
func TestOtherFamily(t *testing.T) {
	server, r := newServedSite(t, 0, modeOther)
	wantProbe(t, python(t, r, blockingScript, hostPort(server)...), wantTalk(server))
	closed := netip.AddrPortFrom(server.Addr(), 9)
	wantProbe(t, python(t, r, errnoScript, hostPort(closed)...), "ECONNREFUSED\n")
	r.ledNothing(t)
	waits := "s = socket.socket(); s.settimeout(20); s.connect((host, port)); talk(s)\n"
	wantProbe(t, python(t, r, waits, hostPort(server)...), wantTalk(server))
	r.heard(t, "relayed "+server.String())
	mapped := netip.AddrPortFrom(netip.AddrFrom16(server.Addr().As16()), server.Port())
	script := "s = socket.socket(socket.AF_INET6); s.connect((host, port)); talk(s)\n"
	wantProbe(t, python(t, r, script, hostPort(mapped)...), wantTalk(mapped))
	r.heard(t, fmt.Sprintf("converted %v true true <nil>", server))
	// A socket for IPv6 only would not reach the server without a converter.
	only := `
s = socket.socket(socket.AF_INET6); s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
print(errno.errorcode[s.connect_ex((host, port))])
`
	wantProbe(t, python(t, r, only, hostPort(mapped)...), "ENETUNREACH\n")
}

// TestNoWayBack connects a blocking program to an IPv6 server while the converter has an IPv4 address only. If the
// converter failed, Linux could not connect the program's socket directly any more. So the socket connects directly from the
// beginning, and the program gets the server's errno.
func TestNoWayBack(t *testing.T) {
	newSite(t)
	r := startRelay(t, modeFour)
	server := plainServer(t, net.JoinHostPort(serverAddr6, "0"))
	wantProbe(t, python(t, r, blockingScript, hostPort(server)...), wantTalk(server))
	closed := netip.AddrPortFrom(server.Addr(), 9)
	wantProbe(t, python(t, r, errnoScript, hostPort(closed)...), "ECONNREFUSED\n")
	r.ledNothing(t)
}

const errnoScript = "print(errno.errorcode[socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET).connect_ex((host, port))])\n"

// TestConnectMapped connects an IPv6 socket to an IPv4 server.
func TestConnectMapped(t *testing.T) {
	for _, timeout := range []string{"None", "20"} {
		t.Run(timeout, func(t *testing.T) {
			server, r := newServedSite(t, 0, modeWorks)
			mapped := netip.AddrPortFrom(netip.AddrFrom16(server.Addr().As16()), server.Port())
			script := "s = socket.socket(socket.AF_INET6); s.settimeout(" + timeout + "); s.connect((host, port)); talk(s)\n"
			wantProbe(t, python(t, r, script, hostPort(mapped)...), wantTalk(mapped))
			if !slices.ContainsFunc(r.lines(), func(l string) bool {
				return strings.HasPrefix(l, "converted "+server.String()) || l == "relayed "+server.String()
			}) {
				t.Errorf("not led: %q", r.lines())
			}
		})
	}
}

// TestOddAddresses: addresses of another family than the socket's, or of another length, and a program that disconnects
// its socket, get the same result as without dcol.
func TestOddAddresses(t *testing.T) {
	const script = `
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def connect(s, raw, length):
    if libc.connect(s.fileno(), raw.ljust(128, b'\0'), length) == 0: return 'connected'
    return errno.errorcode[ctypes.get_errno()]
four = struct.pack('=H', socket.AF_INET) + struct.pack('>H', port) + socket.inet_aton(host)
def six(host): return struct.pack('=H', socket.AF_INET6) + struct.pack('>HI', port, 0) + socket.inet_pton(socket.AF_INET6, host)
mapped = six('::ffff:' + host)
for blocking in (True, False):
    for family, raw, lengths in (
        (socket.AF_INET6, four, (0, 2, 8, 15, 16, 28, 128)), (socket.AF_INET, mapped, (16, 27, 28, 128)),
        (socket.AF_INET, four, (0, 2, 8, 15)), (socket.AF_INET6, six('2001:db8::5'), (16, 23, 27)),
        (socket.AF_INET, b'\0\0' + four[2:], (2, 16, 28)), (socket.AF_INET6, b'\0\0' + four[2:], (2, 16, 28)),
        (socket.AF_INET6, struct.pack('=H', 999) + four[2:], (16, 28)), (socket.AF_INET, six('2001:db8::5'), (28,)),
    ):
        for length in lengths:
            s = socket.socket(family); s.setblocking(blocking)
            print(blocking, family, raw[:2], length, connect(s, raw, length))
    for family, raw, length in ((socket.AF_INET, four, 16), (socket.AF_INET6, mapped, 28)):
        s = socket.socket(family); s.setblocking(blocking)
        first = connect(s, raw, length)
        select.select([], [s], [], 20)
        print(blocking, family, first, connect(s, bytes(16), 16), connect(s, raw, length))
`
	server, r := newServedSite(t, 0, modeWorks)
	led := python(t, r, script, hostPort(server)...)
	without, err := exec.Command("python3", led.Args[slices.Index(led.Args, "python3")+1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, without)
	}
	wantProbe(t, led, string(without))
}

func TestCurlThroughRelay(t *testing.T) {
	needProgram(t, "curl")
	server, r := newServedSite(t, 0, modeWorks)
	t.Chdir(filepath.Dir(r.socket))
	r.socket = filepath.Base(r.socket) // as it may be given to the command
	cmd := r.run(t, "curl", "-sS", "--http0.9", "-o", "/dev/null", "-w", "%{remote_ip} %{remote_port} %{size_download}\n", "telnet://"+server.String())
	cmd.Stdin = strings.NewReader("hello\n")
	wantProbe(t, cmd, fmt.Sprintf("%s %d %d\n", server.Addr(), server.Port(), payload+6))
	r.heard(t, "relayed "+server.String())
}

func TestStaticGoProgramThroughRelay(t *testing.T) {
	server, r := newServedSite(t, 0, modeWorks)
	fetch := build(t, "fetch", "go", "build", "-C", "testdata/fetch", "-o")
	wantProbe(t, r.run(t, fetch, server.String()), fmt.Sprintf("%v hello %d\n", server, payload))
	r.heard(t, "relayed "+server.String())
}

// TestOrdinaryUserThroughConverter: the supervisor needs no rights but those over its own user's programs.
func TestOrdinaryUserThroughConverter(t *testing.T) {
	server, r := newServedSite(t, 0, modeWorks)
	cmd := r.run(t, "/usr/bin/perl", "-MIO::Socket::INET", "-e",
		`$s = IO::Socket::INET->new(PeerAddr => shift) or die $!; print $s->peerhost, "\n"`, server.String())
	asNobody(t, cmd)
	wantProbe(t, cmd, serverAddr+"\n")
	r.heard(t, fmt.Sprintf("converted %v true true <nil>", server))
}

// TestServerRefusesConverted: the program sees the error that it would have had, and can use the socket again.
func TestServerRefusesConverted(t *testing.T) {
	server, r := newServedSite(t, 0, modeSplits)
	script := `
s = socket.socket()
print(errno.errorcode[s.connect_ex((host, 9))], s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
try: s.getpeername()
except OSError as e: print(errno.errorcode[e.errno])
s.connect((host, port)); talk(s)
`
	wantProbe(t, python(t, r, script, hostPort(server)...), "ECONNREFUSED 0\nENOTCONN\n"+wantTalk(server))
	r.heard(t, fmt.Sprintf("converted %s:9 true true <nil>", serverAddr))
}

// TestConverterFails: connections go directly, with the options that the program has set.
func TestConverterFails(t *testing.T) {
	script := `
s = socket.socket()
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack('qq', %d, 0))
start = time.monotonic()
s.connect((host, port))
took = time.monotonic() - start
assert s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
assert struct.unpack('qq', s.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16)) == (%[1]d, 0)
assert took < 3, took
talk(s)
`
	for _, c := range []struct {
		mode, told  string
		sendTimeout int
	}{
		{modeDead, "unserved", 0}, {modeCloses, "refused", 0}, {modeMalformed, "refused", 0},
		{modeRefuses, "refused", 0}, {modeBusy, "refused", 0},
	} {
		t.Run(c.mode, func(t *testing.T) {
			server, r := newServedSite(t, 0, c.mode)
			wantProbe(t, python(t, r, fmt.Sprintf(script, c.sendTimeout), hostPort(server)...), wantTalk(server))
			r.heard(t, fmt.Sprintf("%s %s %s:5124", c.told, server, converterAddr))
		})
	}
	// Nobody knows whether the converter or the server is silent, and the program waits for two seconds at most.
	for _, sendTimeout := range []int{0, 4} {
		t.Run(fmt.Sprintf("silent, SO_SNDTIMEO %d", sendTimeout), func(t *testing.T) {
			server, r := newServedSite(t, 0, modeSilent)
			wantProbe(t, python(t, r, fmt.Sprintf(script, sendTimeout), hostPort(server)...), wantTalk(server))
			r.heard(t, fmt.Sprintf("unserved %s %s:5124", server, converterAddr))
		})
	}
	t.Run("a malformed header", func(t *testing.T) {
		server, r := newServedSite(t, 0, modeOdd)
		wantProbe(t, python(t, r, fmt.Sprintf(script, 0)+"s = socket.socket(); s.connect((host, port)); talk(s)\n", hostPort(server)...), wantTalk(server)+wantTalk(server))
		carried := fmt.Sprintf("carried %s %s:5124 true", server, converterAddr)
		eventually(t, "the second connection is reported", func() bool {
			return len(slices.DeleteFunc(r.lines(), func(line string) bool { return line != carried })) == 2
		})
		for _, line := range r.lines() { // about the first one
			if strings.HasPrefix(line, "learned") {
				t.Errorf("%s from TCP options that are malformed", line)
			}
		}
	})
	t.Run("the next converter", func(t *testing.T) {
		server, r := newServedSite(t, 0, modeFirstDead)
		wantProbe(t, python(t, r, fmt.Sprintf(script, 0), hostPort(server)...), wantTalk(server))
		r.heard(t, fmt.Sprintf("unserved %s %s:5125", server, converterAddr))
		r.heard(t, fmt.Sprintf("carried %s %s:5124 true", server, converterAddr))
	})
	t.Run("the first converter takes its time", func(t *testing.T) { // the next one is not tried, because it might, too
		needProgram(t, "nft")
		server, r := newServedSite(t, 0, modeFirstDead)
		rules := "add table inet t; add chain inet t in { type filter hook input priority 0; }; add rule inet t in tcp dport 5125 drop"
		if text, err := exec.Command("nft", rules).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		wantProbe(t, python(t, r, blockingScript, hostPort(server)...), wantTalk(server))
		r.heard(t, fmt.Sprintf("unserved %s %s:5125", server, converterAddr))
		if slices.ContainsFunc(r.lines(), func(l string) bool { return strings.HasPrefix(l, "converted") }) {
			t.Errorf("the next converter was tried: %q", r.lines())
		}
	})
	t.Run("relay refuses", func(t *testing.T) {
		server, r := newServedSite(t, 0, modeForgets)
		wantProbe(t, python(t, r, timedScript, hostPort(server)...), wantTalk(server))
		if slices.Contains(r.lines(), "relayed "+server.String()) {
			t.Error("relayed")
		}
	})
}

// TestOwnLimit: SO_SNDTIMEO bounds connect() even if the converter and then the server are silent. The direct
// connection gets the rest of the limit, not the whole limit again.
func TestOwnLimit(t *testing.T) {
	const silent = "198.18.0.1"
	newSite(t)
	for _, command := range []string{
		"link add void type veth peer name end", "link set end up", "link set void up",
		"route add " + silent + " dev void", "neighbour add " + silent + " lladdr 02:00:00:00:00:99 dev void",
	} {
		if text, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v %s", command, err, text)
		}
	}
	r := startRelay(t, modeSilent)
	const script = `
s = socket.socket()
limit = struct.pack('qq', 5, 0)
s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
start = time.monotonic()
code = s.connect_ex((host, port))
took = time.monotonic() - start
print(errno.errorcode[code], s.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16) == limit, took if not 4.9 < took < 6.9 else "")
`
	wantProbe(t, python(t, r, script, silent, "80"), "EINPROGRESS True \n")
	r.heard(t, fmt.Sprintf("unserved %s:80 %s:5124", silent, converterAddr))
}

// TestShortLimit: a converter that does not answer within a short limit of the program's own need not be silent.
func TestShortLimit(t *testing.T) {
	server, r := newServedSite(t, 0, modeSilent)
	const script = `
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack('qq', 1, 0))
s.connect((host, port)); talk(s)
`
	wantProbe(t, python(t, r, script, hostPort(server)...), wantTalk(server))
	r.heard(t, fmt.Sprintf("suspect %s:5124", converterAddr))
	if slices.Contains(r.lines(), fmt.Sprintf("unserved %s %s:5124", server, converterAddr)) {
		t.Error("the converter is not asked for this server any more")
	}
}

// TestSlowConverterDelaysNoOther: connections that wait for a converter delay neither sockets nor other connections.
func TestSlowConverterDelaysNoOther(t *testing.T) {
	server, r := newServedSite(t, directPort, modeSilent)
	script := `
waiting = [threading.Thread(target=lambda: socket.create_connection((host, 9)), daemon=True) for i in range(6)]
for t in waiting: t.start()
sys.stdin.readline()
for i in range(5): talk(socket.create_connection((host, port)))
print(all(t.is_alive() for t in waiting), flush=True)
sys.stdin.readline()
`
	cmd := python(t, r, script, hostPort(server)...)
	in, out := started(t, cmd)
	defer cmd.Process.Kill()
	eventually(t, "all wait for the converter", func() bool {
		return len(slices.DeleteFunc(r.lines(), func(l string) bool { return l != "silent" })) == 6
	})
	if _, err := io.WriteString(in, "\n"); err != nil {
		t.Fatal(err)
	}
	want := strings.Repeat(wantTalk(server), 5) + "True\n"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(out, got); err != nil || string(got) != want {
		t.Errorf("%v: printed %q, want %q", err, got, want)
	}
	// A signal ends a program that waits for a converter.
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != unix.SIGTERM {
		t.Errorf("ended with %v", cmd.ProcessState)
	}
}

// TestFastOpenIsNotLed: data in the SYN comes without connect(), and goes where the program says.
func TestFastOpenIsNotLed(t *testing.T) {
	server, r := newServedSite(t, 0, modeWorks)
	script := `
s = socket.socket()
s.sendto(b'hello\n', socket.MSG_FASTOPEN, (host, port))
assert s.recv(6, socket.MSG_WAITALL) == b'hello\n'
print(s.getpeername())
s = socket.socket()
s.setsockopt(socket.IPPROTO_TCP, 30, 1) # TCP_FASTOPEN_CONNECT
s.connect((host, port))
talk(s)
`
	wantProbe(t, python(t, r, script, hostPort(server)...), fmt.Sprintf("('%s', %d)\n", server.Addr(), server.Port())+wantTalk(server))
	if slices.ContainsFunc(r.lines(), func(l string) bool {
		return strings.Contains(l, "ed "+server.String()) && !strings.HasPrefix(l, "asked")
	}) {
		t.Errorf("led: %q", r.lines())
	}
}

// TestNotLed makes connections that go directly, and checks that each supervisor asks the relay at most once.
func TestNotLed(t *testing.T) {
	const five = "for i in range(5): talk(socket.create_connection((host, port)))\n"
	for name, script := range map[string]string{
		"direct by the relay's answer": five,
		"UDP":                          "for i in range(5): socket.socket(type=socket.SOCK_DGRAM).connect((host, 99))\n" + five,
	} {
		t.Run(name, func(t *testing.T) {
			server, r := newServedSite(t, directPort, modeWorks)
			wantProbe(t, python(t, r, script, hostPort(server)...), strings.Repeat(wantTalk(server), 5))
			// Each of the supervisors may ask.
			if asked := r.lines(); len(asked) == 0 || len(asked) > supervisors || slices.Contains(asked, "asked "+serverAddr+":99") {
				t.Errorf("the relay heard %q", asked)
			}
		})
	}
}

// TestExcludedProgram: the executable counts that a process has when it calls connect(), whatever started it, and also
// after another has taken its place in the folder.
func TestExcludedProgram(t *testing.T) {
	server, r := newServedSite(t, 0, modeWorks)
	fetch := build(t, "fetch", "go", "build", "-C", "testdata/fetch", "-o")
	spared := filepath.Join(filepath.Dir(fetch), sparedProgram)
	if err := os.Link(fetch, spared); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%v hello %d\n", server, payload)
	wantProbe(t, r.run(t, "/bin/sh", "-c", `"$0" "$1" && exec "$0" "$1"`, spared, server.String()), want+want)
	content, err := os.ReadFile("/usr/bin/perl")
	if err == nil {
		err = os.WriteFile(spared+"-perl", content, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	script := `unlink $^X; IO::Socket::INET->new(PeerAddr => shift) or die $!; print "replaced\n"`
	wantProbe(t, r.run(t, spared+"-perl", "-MIO::Socket::INET", "-e", script, server.String()), "replaced\n")
	if heard := r.lines(); len(heard) > 0 {
		t.Errorf("the relay heard %q", heard)
	}
	wantProbe(t, r.run(t, fetch, server.String()), want)
	r.heard(t, "relayed "+server.String())
}

// TestBoundGoesDirectly: the relay could not recognise a socket's connection that the program has bound.
func TestBoundGoesDirectly(t *testing.T) {
	server, r := newServedSite(t, 0, modeWorks)
	script := "s = socket.socket(); s.bind(('', 0)); s.settimeout(20); s.connect((host, port)); talk(s)\n"
	wantProbe(t, python(t, r, script, hostPort(server)...), wantTalk(server))
	if slices.Contains(r.lines(), "relayed "+server.String()) {
		t.Error("relayed")
	}
}

// TestWithoutRouteGoesDirectly: a program that tries IPv6 first must see that there is none, to try IPv4.
func TestWithoutRouteGoesDirectly(t *testing.T) {
	newSite(t)
	r := startRelay(t, modeWorks)
	script := "s = socket.socket(); s.setblocking(False); print(errno.errorcode[s.connect_ex((host, port))])\n"
	wantProbe(t, python(t, r, script, "198.51.100.1", "80"), "ENETUNREACH\n")
}

// TestOtherNamespaceGoesDirectly: the relay of one namespace is not asked to serve another, whose loopback is not its own.
func TestOtherNamespaceGoesDirectly(t *testing.T) {
	newSite(t)
	r := startRelay(t, modeWorks)
	newSite(t) // another
	server := plainServer(t, serverAddr+":0")
	for _, script := range []string{blockingScript, timedScript} {
		wantProbe(t, python(t, r, script, hostPort(server)...), wantTalk(server))
	}
	if !slices.Contains(r.lines(), "asked "+server.String()) {
		t.Errorf("not asked: %q", r.lines())
	}
}

// TestPeerAfterReuse: a socket that was led and then disconnected shows its new peer.
func TestPeerAfterReuse(t *testing.T) {
	server, r := newServedSite(t, 0, modeWorks)
	plainServer(t, fmt.Sprintf("%s:%d", serverAddr, directPort))
	script := `
import ctypes
libc = ctypes.CDLL(None)
s = socket.socket()
def reconnect(port, timeout):
    libc.connect(s.fileno(), struct.pack('H14x', 0), 16)
    s.settimeout(timeout)
    s.connect((host, port))
    short = ctypes.create_string_buffer(b'\xff' * 16, 16); n = ctypes.c_int(6)
    assert libc.getpeername(s.fileno(), short, ctypes.byref(n)) == 0
    assert n.value == 16 and short.raw[6:] == b'\xff' * 10 and struct.unpack('>H', short.raw[2:4])[0] == port, (n, short.raw)
    assert libc.getpeername(s.fileno(), None, None) == -1
    print(s.getpeername()[1] == port)
for i in range(3):
    reconnect(port, None); reconnect(port, 20); reconnect(81, None)
`
	wantProbe(t, python(t, r, script, hostPort(server)...), strings.Repeat("True\n", 9))
}

// TestRelayAbsent: without a relay, the filter does not stop at connect().
func TestRelayAbsent(t *testing.T) {
	server, gone := newServedSite(t, 0, modeWorks)
	gone.stop(t) // leaves its socket
	for _, r := range []*relayProcess{{}, {socket: filepath.Join(t.TempDir(), "none")}, gone} {
		wantProbe(t, python(t, r, blockingScript+timedScript, hostPort(server)...), strings.Repeat(wantTalk(server), 2))
	}
	// The program makes its own answer to connect(), which it could not with a filter that stops at it first.
	probe := python(t, gone, "print(open('/proc/self/status').read().count('Seccomp_filters:\\t1'))\n", "-", "0")
	wantProbe(t, probe, "1\n")
	if len(gone.lines()) != 0 {
		t.Errorf("asked: %q", gone.lines())
	}
}

// TestRelayKilled kills the relay while a program runs, and starts another one.
func TestRelayKilled(t *testing.T) {
	server, r := newServedSite(t, 0, modeWorks)
	script := `
for line in sys.stdin:
    talk(socket.create_connection((host, port))); talk(socket.create_connection((host, port), 20))
    sys.stdout.flush()
`
	cmd := python(t, r, script, hostPort(server)...)
	in, pipe := started(t, cmd)
	out := bufio.NewReader(pipe)
	round := func() {
		t.Helper()
		if _, err := io.WriteString(in, "\n"); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			line, err := out.ReadString('\n')
			if err != nil || line != wantTalk(server) {
				t.Fatalf("%q %v", line, err)
			}
		}
	}
	round()
	r.heard(t, "relayed "+server.String())
	r.stop(t)
	before := len(r.lines())
	round()
	if len(r.lines()) != before {
		t.Errorf("a killed relay said %q", r.lines()[before:])
	}
	r.start(t, modeWorks)
	eventually(t, "the new relay is asked", func() bool {
		round()
		return slices.Contains(r.lines()[before:], "relayed "+server.String())
	})
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestSupervisorsKilledWhileConnecting kills one supervisor after the other while a program connects.
func TestSupervisorsKilledWhileConnecting(t *testing.T) {
	server, r := newServedSite(t, 0, modeWorks)
	script := newScript(t, `#!/bin/sh
exec python3 -c '
import socket, select, sys, threading
done = []
def work(timeout):
    while not done:
        s = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout)
        assert s.getpeername()[:2] == (sys.argv[1], int(sys.argv[2])), s
        s.sendall(b"hello\n")
        assert s.recv(6, socket.MSG_WAITALL) == b"hello\n"
        s.close()
    ok.append(1)
ok = []
threads = [threading.Thread(target=work, args=(t,)) for t in (None, None, 20)]
for t in threads: t.start()
sys.stdin.read()
done.append(1)
for t in threads: t.join()
sys.exit(len(ok) != 3)
' "$@"
`)
	cmd := r.run(t, append([]string{script}, hostPort(server)...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	in, _ := started(t, cmd)
	defer func() { cmd.Process.Kill() }()
	r.heard(t, "relayed "+server.String())
	killSupervisors(t, script)
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, stderr.String())
	}
}

// TestBothSupervisorsKilled: what is open stays open.
func TestBothSupervisorsKilled(t *testing.T) {
	server, r := newServedSite(t, 0, modeWorks)
	script := newScript(t, `#!/bin/sh
exec python3 -c '
import socket, sys
to = (sys.argv[1], int(sys.argv[2]))
open = [socket.create_connection(to), socket.create_connection(to, 20)]
print("open", flush=True)
sys.stdin.read()
for s in open:
    s.sendall(b"hello\n")
    print(s.recv(6, socket.MSG_WAITALL))
' "$@"
`)
	cmd := r.run(t, append([]string{script}, hostPort(server)...)...)
	in, out := started(t, cmd)
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); line != "open\n" {
		t.Fatalf("%q %v", line, err)
	}
	pids := bothSupervisors(t, script)
	for _, signal := range []unix.Signal{unix.SIGSTOP, unix.SIGKILL} { // so that none starts another
		for _, pid := range pids {
			if err := unix.Kill(pid, signal); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, "both are gone", func() bool { return len(supervisorsOf(t, script)) == 0 })
	in.Close()
	rest, err := io.ReadAll(lines)
	if err := errors.Join(err, cmd.Wait()); err != nil || string(rest) != "b'hello\\n'\nb'hello\\n'\n" {
		t.Errorf("%v: %q", err, rest)
	}
}

// TestSupervisorsWithoutDescriptors: connections go directly until there are descriptors again.
func TestSupervisorsWithoutDescriptors(t *testing.T) {
	server, r := newServedSite(t, 0, modeWorks)
	script := newScript(t, `#!/bin/sh
exec python3 -c '
import socket, sys
for timeout in sys.stdin:
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])), int(timeout) or None)
    s.sendall(b"hello\n")
    print(s.recv(6, socket.MSG_WAITALL), flush=True)
    s.close()
' "$@"
`)
	cmd := r.run(t, append([]string{script}, hostPort(server)...)...)
	in, out := started(t, cmd)
	defer func() { cmd.Process.Kill() }()
	lines := bufio.NewReader(out)
	talks := func() (converted int) {
		t.Helper()
		before := len(r.lines())
		for _, timeout := range []string{"0", "20"} { // that waits in connect(), and that does not
			_, _ = fmt.Fprintln(in, timeout)
			if line, err := lines.ReadString('\n'); err != nil || line != "b'hello\\n'\n" {
				t.Fatalf("timeout %s: %q, %v", timeout, line, err)
			}
		}
		for _, line := range r.lines()[before:] {
			if strings.HasPrefix(line, "converted") || strings.HasPrefix(line, "relayed") {
				converted++
			}
		}
		return converted
	}
	limit := func(most uint64) {
		t.Helper()
		for _, pid := range bothSupervisors(t, script) {
			var limit unix.Rlimit
			err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit)
			limit.Cur = min(most, limit.Max)
			if err := errors.Join(err, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil)); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, "both are converted", func() bool { return talks() == 2 })
	limit(0)
	if n := talks(); n != 0 {
		t.Errorf("%d connections are converted", n)
	}
	limit(1024)
	eventually(t, "both are converted again", func() bool { return talks() == 2 })
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// started starts a program, and returns the ends of its standard input and output.
func started(t *testing.T, cmd *exec.Cmd) (in io.WriteCloser, out io.Reader) {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if out, err = cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if cmd.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return in, out
}

// TestInheritedConnect leaves a connect() call in the middle, as a killed supervisor does.
func TestInheritedConnect(t *testing.T) {
	server, r := newServedSite(t, 0, modeSilent)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// It ends before Python asks for the peers of its open sockets.
	program := exec.CommandContext(ctx, "python3", "-c", `
import os, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
s.connect((sys.argv[1], int(sys.argv[2])))
os.read(0, 1) # until the test has seen the connection
s.sendall(b"hello\n")
s.shutdown(socket.SHUT_WR)
assert s.recv(6, socket.MSG_WAITALL) == b"hello\n"
os._exit(0)
`, server.Addr().String(), strconv.Itoa(int(server.Port())))
	var stderr strings.Builder
	program.Stderr = &stderr
	in, err := program.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := startUnderFilter(t, program, true)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Process.Kill()
	shared, err := newBoard()
	if err != nil {
		t.Fatal(err)
	}
	killed, err := newSupervisor(listener, shared, 1, r.socket)
	if err != nil {
		t.Fatal(err)
	}
	heir, err := newSupervisor(listener, shared, 0, r.socket)
	if err != nil {
		t.Fatal(err)
	}
	call := &shared.calls[1][0]
	for {
		if err := receive(listener, call); err != nil {
			t.Fatal(err)
		}
		if to, ok := destination(call); call.call == unix.SYS_CONNECT && ok && to == server {
			break
		}
		if err := answerContinue(listener, call.id); err != nil {
			t.Fatal(err)
		}
	}
	sock, err := killed.callerSocket(call)
	if err != nil {
		t.Fatal(err)
	}
	lead := &shared.leads[1][0]
	lead.begin(call) // and the call is still in its worker's place
	lead.touch(unix.Timeval{Sec: 7})
	to, _ := sock.sockaddr(netip.MustParseAddrPort(converterAddr + ":5124"))
	if err := unix.Connect(sock.fd, to); err != nil {
		t.Fatal(err)
	}
	r.heard(t, "silent")
	heir.inherit(1)
	if lead.call.id != 0 || call.id != 0 {
		t.Error("the call is still on the board")
	}
	timeout, err := unix.GetsockoptTimeval(sock.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO)
	if err != nil || timeout.Sec != 7 {
		t.Errorf("send timeout %+v: %v", timeout, err)
	}
	// A call that was answered is left alone, though it is on the board.
	eventually(t, "connected", func() bool { return !isClosed(sock.fd) })
	lead.call.id = ^uint64(0)
	heir.inherit(1)
	if isClosed(sock.fd) {
		t.Error("the connection of an answered call was undone")
	}
	unix.Close(sock.fd)
	in.Close()
	// The filter notifies of nothing that it does now.
	if err := program.Wait(); err != nil {
		t.Errorf("%v: %s", err, stderr.String())
	}
}

func TestPeerTable(t *testing.T) {
	shared := board{entries: new(entries)}
	a, b := netip.MustParseAddrPort("203.0.113.5:80"), netip.MustParseAddrPort("[2001:db8::5]:443")
	if shared.hasPeers() {
		t.Error("has peers")
	}
	if _, _, ok := shared.findPeer(7); ok {
		t.Error("found in empty tables")
	}
	shared.addPeer(0, 7, a, b, 1)
	shared.addPeer(1, 7, b, a, 2)
	shared.addPeer(1, 8, a, a, 3)
	if server, actual, ok := shared.findPeer(7); !ok || server != b || actual != a {
		t.Errorf("found %v %v %v, want the later", server, actual, ok)
	}
	shared.addPeer(0, 7, a, a, 4)
	if server, _, _ := shared.findPeer(7); server != a {
		t.Errorf("found %v, want the latest", server)
	}
	for i := range uint64(peerWays) { // of the same set
		shared.addPeer(0, 7+(i+1)*peerSets, a, b, int64(10+i))
	}
	if server, _, _ := shared.findPeer(7); server != b {
		t.Errorf("found %v: the oldest of a full set remains", server)
	}
	if _, _, ok := shared.findPeer(7 + peerSets); !ok {
		t.Error("a later one is gone")
	}
}

func TestPidfdOfLeader(t *testing.T) {
	pidfd, err := pidfdOfLeader(uint32(unix.Gettid()))
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(pidfd)
}

func TestPatience(t *testing.T) {
	for sendTimeout, want := range map[time.Duration]time.Duration{
		0: convertersTimeout, time.Hour: convertersTimeout, 4 * time.Second: 2 * time.Second, time.Microsecond: 500 * time.Nanosecond,
	} {
		if got := patience(sendTimeout); got != want {
			t.Errorf("%v: %v, want %v", sendTimeout, got, want)
		}
	}
}

// makeConnections prints how many nanoseconds connect() takes: the median, and the 99th percentile.
func makeConnections(addr, kind, count string) int {
	n, err := strconv.Atoi(count)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	to, _ := callerSocket{family: unix.AF_INET}.sockaddr(netip.MustParseAddrPort(addr))
	spent := make([]time.Duration, n)
	for i := range spent {
		typ := unix.SOCK_STREAM
		switch kind {
		case nonblocking:
			typ |= unix.SOCK_NONBLOCK
		case datagram:
			typ = unix.SOCK_DGRAM
		}
		fd, err := unix.Socket(unix.AF_INET, typ, 0)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		start := time.Now()
		err = unix.Connect(fd, to)
		spent[i] = time.Since(start)
		if kind == nonblocking && errors.Is(err, unix.EINPROGRESS) {
			err = nil
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		unix.Close(fd)
	}
	slices.Sort(spent)
	fmt.Println(spent[n/2].Nanoseconds(), spent[n*99/100].Nanoseconds())
	return 0
}

// Kinds of sockets for makeConnections.
const (
	blocking    = "blocking"
	nonblocking = "nonblocking"
	datagram    = "datagram" // UDP
)

// BenchmarkConnect measures connect(): without dcol, and under `dcol run` without a relay, with one that wants nothing
// converted, to a converter, and to the relay.
func BenchmarkConnect(b *testing.B) {
	const noDcol = "no dcol"
	for _, c := range []struct{ name, mode, kind string }{
		{noDcol, noDcol, blocking},
		{noDcol + ", UDP", noDcol, datagram},
		{"no relay", "", blocking},
		{"direct", modeDirect, blocking},
		{"converter", modeWorks, blocking},
		{"no relay, non-blocking", "", nonblocking},
		{"direct, non-blocking", modeDirect, nonblocking},
		{"relay, non-blocking", modeWorks, nonblocking},
		{"no relay, UDP", "", datagram},
		{"direct, UDP", modeDirect, datagram},
		{"relay, UDP", modeWorks, datagram},
	} {
		b.Run(c.name, func(b *testing.B) {
			newSite(b)
			server := acceptAndClose(b, true)
			loop := mark(b, connectMark, server, c.kind, strconv.Itoa(b.N))
			switch c.mode {
			case noDcol:
			case "":
				loop = (&relayProcess{}).run(b, loop.Args...)
			default:
				loop = startRelay(b, c.mode).run(b, loop.Args...)
			}
			text, err := loop.Output()
			if err != nil {
				b.Fatal(err)
			}
			var median, p99 float64
			if _, err := fmt.Sscan(string(text), &median, &p99); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(median, "median-ns/connect")
			b.ReportMetric(p99, "p99-ns/connect")
			b.ReportMetric(0, "ns/op")
		})
	}
}
