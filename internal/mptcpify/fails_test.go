package mptcpify

import (
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestServerFails: if a server refuses, resets or does not answer connections, or is unreachable, a program with
// blocking sockets gets the same errors as without dcol. With non-blocking sockets its connection is reset.
func TestServerFails(t *testing.T) {
	const silent, silent6, resets = "198.18.0.1", "2001:db8:2::1", "83"
	newSite(t)
	needProgram(t, "nft")
	for _, command := range []string{
		"sysctl -qw net.ipv4.tcp_syn_retries=1", // the kernel gives up after three seconds
		"ip addr add " + silent + "/32 dev lo",
		"ip addr add " + silent6 + "/128 dev lo nodad",
		"ip route add unreachable 198.18.0.2",
		"ip route add unreachable 2001:db8:2::2",
		"nft add table inet t; add chain inet t in { type filter hook input priority 0; }; add rule inet t in ip daddr " + silent + " tcp flags syn drop; add rule inet t in ip6 daddr " + silent6 + " tcp flags syn drop",
	} {
		argv := strings.Fields(command)
		if argv[0] == "nft" {
			argv = []string{"nft", strings.TrimPrefix(command, "nft ")}
		}
		if text, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v %s", command, err, text)
		}
	}
	for _, addr := range []string{serverAddr, serverAddr6} {
		resetsAll(t, net.JoinHostPort(addr, resets))
	}
	r := startRelay(t, modeWorks)
	const script = `
def name(code): return errno.errorcode.get(code, str(code))
def fails(s, connect):
    try:
        connect()
        s.recv(1)
        return "nothing"
    except OSError as e: return name(e.errno)
def waits(s, to): return fails(s, lambda: s.connect(to))
def polls(s, to):
    s.setblocking(False)
    code = s.connect_ex(to)
    if code != errno.EINPROGRESS: return name(code)
    p = select.poll(); p.register(s, select.POLLOUT); p.poll()
    code = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code: return name(code)
    p.modify(s, select.POLLIN); p.poll()
    return fails(s, lambda: None)
from concurrent.futures import ThreadPoolExecutor
four = [(host, 9), (host, port), ("198.18.0.1", 80), ("198.18.0.2", 80), ("198.51.100.1", 80)]
six = [("2001:db8::5", 9), ("2001:db8::5", port), ("2001:db8:2::1", 80), ("2001:db8:2::2", 80), ("2001:db8:3::1", 80)]
all = [(how, family, to) for how in (waits, polls) for family, list in ((socket.AF_INET, four), (socket.AF_INET6, six)) for to in list]
with ThreadPoolExecutor(len(all)) as pool:
    got = [*pool.map(lambda a: a[0](socket.socket(a[1]), a[2]), all)]
for i in range(0, len(got), len(four)): print(*got[i:i + len(four)])
`
	server := []string{serverAddr, resets}
	const would = "ECONNREFUSED ECONNRESET ETIMEDOUT EHOSTUNREACH ENETUNREACH\n"
	led := python(t, r, script, server...)
	wantProbe(t, exec.Command("python3", led.Args[slices.Index(led.Args, "python3")+1:]...), strings.Repeat(would, 4))
	const relayed = "ECONNRESET ECONNRESET ECONNRESET EHOSTUNREACH ENETUNREACH\n"
	wantProbe(t, led, would+would+relayed+relayed)
	for _, addr := range []string{silent, "[" + silent6 + "]"} {
		if !slices.ContainsFunc(r.lines(), func(l string) bool { return strings.HasPrefix(l, "converted "+addr) }) {
			t.Errorf("the converter heard %q, nothing of %s", r.lines(), addr)
		}
	}
}

// resetsAll is a server that resets connections as soon as it has accepted them.
func resetsAll(t *testing.T, addr string) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		}
	}()
}
